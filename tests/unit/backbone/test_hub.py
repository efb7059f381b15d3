"""Files of the hub, from a stand-in of it: bounded, of one commit, and used offline. That they are announced,
resumed and compared is in tests/e2e/test_default_backbone.py.
"""

import json
from pathlib import Path

import pytest
from safetensors.torch import save
from torch import Tensor

from dear.backbone.loading import hub, weights
from dear.backbone.loading.load import find_weights, load_clip
from dear.backbone.names import BackboneName
from dear.errors import WeightsError
from dear.limits import LimitError
from tests.helpers.clips import saved
from tests.helpers.errors import refuses
from tests.standin_hub import COMMIT, Faults, StandIn
from tests.unit.backbone.prime import NAME

CLIP, FILE, PIXELS = "someone/prime-clip", "open_clip_model.safetensors", "preprocessor_config.json"
OFFLINE = "huggingface_hub.constants.HF_HUB_OFFLINE"


@pytest.fixture
def content(standin: StandIn, state: dict[str, Tensor]) -> bytes:
    """The weights of the small architecture, served under the name that open_clip asks for."""
    saved_state = save(state)
    standin.files[CLIP] = {"README.md": b"a card", FILE: saved_state}
    return saved_state


def test_a_file_above_its_limit_is_not_fetched(
    standin: StandIn, content: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    standin.files[CLIP]["config.json"] = b"{}"
    standin.faults.size = 2**27 + 1
    refuses(LimitError, "DEAR_LIMIT_JSON_BYTES", hub.fetch, CLIP, ["config.json"])
    monkeypatch.setenv("DEAR_LIMIT_TENSOR_BYTES", str(len(content) - 1))
    refuses(LimitError, "DEAR_LIMIT_TENSOR_BYTES", load_clip, NAME, "plain")
    assert not [path for method, path, _ in standin.requests if method == "GET" and "/resolve/" in path]
    assert not standin.downloads()


@pytest.mark.usefixtures("content")
@pytest.mark.parametrize(("code", "part"), [(404, "/resolve/"), (429, "/cdn/")])
def test_an_error_of_the_hub_is_told_in_one_line(code: int, part: str, standin: StandIn) -> None:
    standin.faults.status = {part: code}
    refuses(WeightsError, (f"{NAME}/plain", "local path"), load_clip, NAME, "plain")


@pytest.mark.usefixtures("standin")
def test_a_name_of_no_repository_may_be_that_of_a_folder() -> None:
    """That comes first: the rest of the line is about the hub."""
    with pytest.raises(WeightsError, match=r"^there is no folder gone/hfclip here, and "):
        load_clip("gone/hfclip")


def test_a_hub_that_does_not_answer_is_told_at_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The client alone tries again for half a minute."""
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr(OFFLINE, False)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.utils._http.time.sleep", lambda _: pytest.fail("it waits"))
    with pytest.raises(WeightsError, match=f"hf download {CLIP}"):
        hub.fetch(CLIP, ["config.json"])


def test_the_first_file_that_a_repository_has_is_used(
    standin: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What another program has cached does not decide, and no pickle is downloaded if a file names it."""
    standin.files[CLIP] = {"b.json": b"{}", "c.json": b"[]", "pickled.bin": b"2"}
    assert hub.fetch(CLIP, ["a.json", "b.json", "c.json"]).read_bytes() == b"{}"
    refuses(hub.MissingError, "has no a.json and no d.json", hub.fetch, CLIP, ["a.json", "d.json"])
    refuses(hub.MissingError, "safetensors", hub.fetch, CLIP, [FILE, "pickled.bin"], safe_only=True)
    assert not standin.downloads()
    standin.files["someone/both"] = {FILE: b"1", "pickled.bin": b"2"}
    pickled = hub.fetch("someone/both", ["pickled.bin"])
    monkeypatch.setattr(OFFLINE, True)
    assert hub.fetch("someone/both", [FILE, "pickled.bin"]) == pickled
    monkeypatch.setattr(OFFLINE, False)
    assert hub.fetch("someone/both", [FILE, "pickled.bin"]).read_bytes() == b"1"


@pytest.mark.usefixtures("content")
@pytest.mark.parametrize("tag", ["plain", "PLAIN"])
def test_weights_with_a_packaged_role_table_are_of_its_commit(
    standin: StandIn, monkeypatch: pytest.MonkeyPatch, tag: str
) -> None:
    """In whatever spelling open_clip takes."""
    monkeypatch.setitem(weights.COMMITS, BackboneName(NAME, "plain"), COMMIT)
    find_weights(NAME, tag)
    assert load_clip(NAME, tag).identity.pretrained == "plain"
    asked = [path for _, path, _ in standin.requests if path.startswith(f"/{CLIP}")]
    assert asked
    assert all(COMMIT in path for path in asked)


class TestOneCommit:
    """A model of the hub has all files of one commit, and what cannot be had is no missing file."""

    @pytest.fixture
    def model(self, tmp_path: Path, standin: StandIn) -> dict[str, bytes]:
        """The files of a model of transformers, served."""
        folder = tmp_path / "model"
        folder.mkdir()
        saved(folder, "CLIP")
        pixels = {"image_mean": [0.1, 0.2, 0.3], "image_std": [0.5, 0.6, 0.7]}
        (folder / PIXELS).write_text(json.dumps(pixels))
        files = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
        return standin.files.setdefault(CLIP, files)

    @pytest.mark.usefixtures("model")
    def test_pixels_that_cannot_be_had_are_not_the_usual_ones(self, standin: StandIn) -> None:
        standin.faults = Faults(status={PIXELS: 403})
        with pytest.raises(WeightsError, match=PIXELS):
            load_clip(CLIP)
        standin.faults = Faults()
        assert load_clip(CLIP).mean.flatten().tolist() == pytest.approx([0.1, 0.2, 0.3])

    @pytest.mark.usefixtures("model")
    def test_what_is_fetched_later_belongs_to_what_was_fetched_before(self, standin: StandIn) -> None:
        """The first command could not have the weights; a later commit may have others."""
        standin.faults = Faults(status={"model.safetensors": 403})
        refuses(WeightsError, "model.safetensors", load_clip, CLIP)
        standin.faults = Faults()
        standin.requests.clear()
        load_clip(CLIP)
        asked = {path for _, path, _ in standin.requests if path.endswith("/model.safetensors")}
        assert f"/{CLIP}/resolve/{COMMIT}/model.safetensors" in asked
        assert f"/{CLIP}/resolve/main/model.safetensors" not in asked

    def test_a_file_that_its_author_adds_later_is_found(
        self, model: dict[str, bytes], standin: StandIn
    ) -> None:
        standin.files[CLIP] = {"README.md": b"soon"}
        hub.fetch(CLIP, ["README.md"])
        refuses(WeightsError, "open_clip_config.json and no config.json", load_clip, CLIP)
        standin.files[CLIP] = model
        standin.faults = Faults(commit="b" * 40)
        assert hub.commit_of(hub.fetch(CLIP, ["config.json"])) == "b" * 40
