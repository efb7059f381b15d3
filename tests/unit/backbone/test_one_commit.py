"""A model of the hub has all files of one commit, and what cannot be had is no missing file."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from dear.backbone import hub
from dear.backbone.load import load_clip
from dear.errors import WeightsError
from tests.standin_hub import COMMIT, Faults, StandIn
from tests.unit.backbone.prime import CONFIG
from tests.unit.backbone.sharded_files import write_sharded
from tests.unit.backbone.test_from_transformers import saved

NAME, PIXELS = "someone/clip", "preprocessor_config.json"
OTHER = "b" * 40


def served(standin: StandIn, folder: Path) -> None:
    standin.files[NAME] = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


@pytest.fixture
def folder(tmp_path: Path, standin: StandIn) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    saved(folder, "CLIP")
    (folder / PIXELS).write_text(json.dumps({"image_mean": [0.1, 0.2, 0.3], "image_std": [0.5, 0.6, 0.7]}))
    served(standin, folder)
    return folder


def mean() -> list[float]:
    return [round(value, 3) for value in load_clip(NAME).mean.flatten().tolist()]


def cached(file: str) -> Path:
    path = hub.cached(NAME, [file])
    assert path is not None
    return path


@pytest.mark.usefixtures("folder")
def test_pixels_that_cannot_be_had_are_not_the_usual_ones(standin: StandIn) -> None:
    standin.faults = Faults(status={PIXELS: 403})
    with pytest.raises(
        WeightsError, match=r"cannot download processor_config\.json or preprocessor_config\.json"
    ):
        load_clip(NAME)
    standin.faults = Faults()
    assert mean() == [0.1, 0.2, 0.3]
    content = cached(PIXELS).resolve()
    content.write_bytes(content.read_bytes().replace(b"0.1", b"0.9"))
    with pytest.raises(WeightsError, match="It was removed: run the command again"):
        load_clip(NAME)
    assert mean() == [0.1, 0.2, 0.3]


def test_a_file_that_a_repository_lacks_is_known_offline(
    folder: Path, standin: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / PIXELS).unlink()
    served(standin, folder)
    usual = load_clip(NAME)
    asked = len(standin.requests)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    again = load_clip(NAME)
    assert again.identity == usual.identity
    assert torch.equal(again.mean, usual.mean)
    assert len(standin.requests) == asked


@pytest.mark.usefixtures("folder")
def test_what_one_command_has_fetched_belongs_to_what_the_next_one_fetches(standin: StandIn) -> None:
    """The first could not have the weights; then there is another commit, whose weights were taken."""
    standin.faults = Faults(status={"model.safetensors": 403})
    with pytest.raises(WeightsError, match=r"cannot download model\.safetensors"):
        load_clip(NAME)
    standin.faults = Faults()
    standin.requests.clear()
    load_clip(NAME)
    asked = [path for _, path, _ in standin.requests]
    assert f"/api/models/{NAME}/revision/{COMMIT}" in asked
    weights = {path for path in asked if path.endswith("/model.safetensors") and "/resolve/" in path}
    assert weights == {f"/{NAME}/resolve/{COMMIT}/model.safetensors"}


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("answered", [{"sha": OTHER}, {"commit": OTHER}, {"sha": OTHER, "commit": OTHER}])
def test_another_commit_than_was_asked_for_is_not_believed(
    standin: StandIn, answered: dict[str, str]
) -> None:
    """The client notes it, and took that commit for the other ever after."""
    standin.faults = Faults(status={PIXELS: 403})
    with pytest.raises(WeightsError, match=r"cannot download .* or preprocessor"):
        load_clip(NAME)
    standin.faults = Faults(**answered)  # type: ignore[arg-type]
    with pytest.raises(WeightsError, match="answers with another commit"):
        load_clip(NAME)
    standin.faults = Faults()
    load_clip(NAME)
    for file in ("config.json", PIXELS, "model.safetensors"):
        assert hub.commit_of(cached(file)) == COMMIT


def test_which_format_is_used_does_not_depend_on_the_cache(
    folder: Path, standin: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another program has cached the pickled weights alone, which were used from then on."""
    (folder / "pytorch_model.bin").write_bytes(b"of another program")
    served(standin, folder)
    whole = load_clip(NAME).identity
    cached("model.safetensors").unlink()
    hub.download(NAME, ["pytorch_model.bin"])
    asked = len(standin.requests)
    assert load_clip(NAME).identity == whole
    assert hub.cached(NAME, ["model.safetensors"]) is not None
    assert len(standin.requests) > asked
    asked = len(standin.requests)
    assert load_clip(NAME).identity == whole
    assert len(standin.requests) == asked
    # Offline it is the one that is there, as no one can tell what else the repository has.
    cached("model.safetensors").unlink()
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(WeightsError, match=r"pytorch_model\.bin"):
        load_clip(NAME)


@pytest.mark.usefixtures("folder")
def test_what_comes_before_in_another_format_is_asked_for_once(
    standin: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a cache that another program filled; a hub that does not answer is asked once in a process."""
    load_clip(NAME)
    for note in [*cached("config.json").parents[2].glob(".no_exist/*/*")]:
        if note.name not in ("tokenizer.json", "vocab.json"):  # of which nothing is cached
            note.unlink()
    monkeypatch.setattr(hub, "_silent", set())
    standin.faults = Faults(status={f"/api/models/{NAME}": 500})
    calls, reach = list[int](), hub.reach
    monkeypatch.setattr(hub, "reach", lambda: calls.append(1) or reach())
    with pytest.warns(UserWarning, match=r"config\.json of the hub's cache is used instead"):
        identity = load_clip(NAME).identity
    assert len(calls) == 1
    standin.faults, standin.requests[:] = Faults(), []
    monkeypatch.setattr(hub, "_silent", set())
    assert load_clip(NAME).identity == identity
    assert len({path for _, path, _ in standin.requests if path.startswith("/api")}) == 1
    standin.requests.clear()
    assert load_clip(NAME).identity == identity
    assert not standin.requests


@pytest.mark.usefixtures("prime_architecture")
def test_the_list_of_a_commit_is_asked_for_once(
    tmp_path: Path, state: dict[str, torch.Tensor], standin: StandIn
) -> None:
    """A list may be long, and a repository have a thousand files of weights."""
    write_sharded(tmp_path / "w", state, stem="open_clip_model")
    (tmp_path / "w" / hub.CONFIG).write_text(json.dumps({"model_cfg": CONFIG}))
    served(standin, tmp_path / "w")
    load_clip(NAME)
    assert len(standin.downloads()) == 2
    assert sum(path.startswith("/api/") for _, path, _ in standin.requests) == 1


def test_another_format_than_the_first_is_used_with_a_warning(
    folder: Path, standin: StandIn, monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    """The first cannot be had just now: the same command had another model in the next process."""
    state = load_file(folder / "model.safetensors")
    torch.save({name: 1.1 * tensor for name, tensor in state.items()}, folder / "pytorch_model.bin")
    served(standin, folder)
    whole = load_clip(NAME).identity
    cached("model.safetensors").unlink()
    hub.download(NAME, ["pytorch_model.bin"])
    monkeypatch.setattr(hub, "_silent", {"someone/else"})  # another repository's failure turns nothing off
    standin.faults = Faults(status={"model.safetensors": 503})
    assert load_clip(NAME).identity != whole
    assert load_clip(NAME).identity != whole
    [told] = [str(warning.message) for warning in recwarn if issubclass(warning.category, UserWarning)]
    assert told.startswith(f"whether {NAME} has model.safetensors or model.safetensors.index.json cannot be")
    assert told.endswith("pytorch_model.bin of the hub's cache is used instead.")
    assert "\n" not in told


def test_what_the_latest_commit_lacks_is_asked_for_once_more(
    folder: Path, standin: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its author adds the configuration in a later commit, which was never seen."""
    monkeypatch.setattr(hub, "_asked_again", set())
    standin.files[NAME] = {"README.md": b"soon"}
    hub.download(NAME, ["README.md"])
    missing = "has no open_clip_config.json and no config.json"
    with pytest.raises(WeightsError, match=missing):  # notes it
        load_clip(NAME)
    asked = len(standin.requests)
    with pytest.raises(WeightsError, match=missing):
        load_clip(NAME)
    assert len(standin.requests) > asked
    asked = len(standin.requests)
    with pytest.raises(WeightsError, match=f"{missing}: name another repository"):
        load_clip(NAME)
    assert len(standin.requests) == asked  # once in a process
    served(standin, folder)
    standin.faults = Faults(sha=OTHER, commit=OTHER)
    hub._asked_again.clear()
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(WeightsError, match=f"{missing}: name another repository"):
        load_clip(NAME)  # the note counts
    hub._asked_again.clear()
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    assert hub.commit_of(hub.fetch(NAME, ["config.json"])) == OTHER


@pytest.mark.usefixtures("folder")
def test_a_note_of_a_missing_file_beside_the_file() -> None:
    """A faulty mirror's, for example: OpenAI's pixels were taken in place of the model's."""
    assert mean() == [0.1, 0.2, 0.3]
    notes = cached(PIXELS).parents[2] / ".no_exist" / COMMIT
    notes.mkdir(parents=True, exist_ok=True)
    (notes / PIXELS).touch()
    assert mean() == [0.1, 0.2, 0.3]
