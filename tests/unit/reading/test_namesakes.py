"""Names that mean something, and those of files in a stranger's folder, which the user does not mean."""

import os
import warnings
from collections.abc import Sequence
from pathlib import Path

import pytest

from dear.adapters.bundle import Bundle
from dear.backbone.choice import check_model, is_architecture, is_local
from dear.backbone.load import load_clip
from dear.backbone.repository import repository
from dear.data.loading import load_dataset, load_images, read_listing
from dear.data.settings import DataSettings
from dear.errors import DataError, DearError, WeightsError
from dear.evaluation.protocols.transfer import DomainGeneralization
from dear.reading.namesakes import note_folder, note_namesake
from dear.roles.sentences import MODEL, load_sentence_model


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A stranger's folder, the current one."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def notes_of(warned: Sequence[warnings.WarningMessage]) -> list[str]:
    return [str(warning.message) for warning in warned]


def test_a_note_comes_once_and_only_if_there_is_something(folder: Path) -> None:
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        note_namesake("tiny", "an architecture")
        assert not warned
        (folder / "tiny").symlink_to("nowhere")
        for _ in range(2):
            note_namesake("tiny", "an architecture")
            note_folder("a/b")
    assert notes_of(warned) == [
        "tiny is an architecture; for what is called so in this folder write ./tiny",
        f"a/b is the folder {folder / 'a' / 'b'}, no repository of the hub",
    ]


@pytest.mark.parametrize("name", ["ViT-B-16", "ViT-B/16", "tiny"])
def test_an_architecture_comes_before_a_folder(name: str, folder: Path) -> None:
    (folder / name).mkdir(parents=True)
    check_model(name)
    assert is_architecture(name)
    with pytest.warns(UserWarning, match=f"^{name} is an architecture; .* write ./{name}$"):
        assert repository(name) is None
    for path in (f"./{name}", str(folder / name)):
        source = repository(path)
        assert source is not None
        assert (source.name, source.folder) == (path, Path(path))


def test_the_tiny_clip_is_that_of_the_package(folder: Path) -> None:
    (folder / "tiny").mkdir()
    with pytest.warns(UserWarning, match=r"^tiny is an architecture;"):
        assert load_clip("tiny").identity.model == "tiny"


def test_weights_are_here_only_if_no_tag_has_their_name(folder: Path) -> None:
    for name in ("laion2b_s34b_b88k", "random:0", "mine"):
        (folder / name).touch()
    assert not is_local("ViT-B-16", "laion2b_s34b_b88k")
    assert not is_local("ViT-B/16", "laion2b_s34b_b88k")
    assert not is_local("ViT-B-16", "random:0")
    assert not is_local("ViT-B-16", "yours")
    assert is_local("ViT-B-16", "./laion2b_s34b_b88k")
    assert is_local("ViT-B-16", "mine")


@pytest.fixture
def cache(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The hub's cache, which knows these names as those of repositories."""
    for name in ("laion--CLIP-x", "me--bundle", "me--bert"):
        (folder / "cache" / f"models--{name}").mkdir(parents=True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(folder / "cache"))
    return folder / "cache"


@pytest.mark.usefixtures("cache")
def test_a_model_called_as_a_repository_that_is_a_folder(folder: Path) -> None:
    (folder / "laion" / "CLIP-x").mkdir(parents=True)
    (folder / "laion" / "CLIP-z").mkdir()
    with pytest.warns(UserWarning, match=r"^laion/CLIP-x is the folder /.*, no repository of the hub$"):
        source = repository("laion/CLIP-x")
    assert source is not None
    assert source.folder == Path("laion/CLIP-x")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        repository("./laion/CLIP-x")
        repository("laion/CLIP-y")
        repository("laion/CLIP-z")  # of which the cache knows nothing


@pytest.mark.usefixtures("cache")
def test_a_bundle_called_as_a_repository_that_is_a_folder(folder: Path) -> None:
    (folder / "me" / "bundle").mkdir(parents=True)
    note = "me/bundle is the folder .*, no repository of the hub"
    with pytest.raises(DearError, match="not a bundle"), pytest.warns(UserWarning, match=note):
        Bundle.from_pretrained("me/bundle")
    for path in ("./me/bundle", Path("me/bundle")):
        with warnings.catch_warnings(record=True) as warned, pytest.raises(DearError, match="not a bundle"):
            Bundle.from_pretrained(path)
        assert not warned


@pytest.mark.usefixtures("cache")
def test_the_usual_sentence_model_is_the_hubs(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    (folder / MODEL).mkdir(parents=True)
    (folder / MODEL / "modules.json").write_text("0")
    note = f"^{MODEL} is a repository of the hub; .* write ./{MODEL}$"
    with pytest.warns(UserWarning, match=note), pytest.raises(WeightsError) as raised:
        load_sentence_model(MODEL)
    assert "modules.json: " not in str(raised.value)
    with pytest.raises(WeightsError, match=r"modules\.json"):
        load_sentence_model(f"./{MODEL}")
    (folder / "me" / "bert").mkdir(parents=True)
    with pytest.warns(UserWarning, match="me/bert is the folder"), pytest.raises(WeightsError):
        load_sentence_model("me/bert")


def test_a_task_and_a_benchmark_come_before_folders(folder: Path) -> None:
    for name in ("tilted-badges", "OxfordPets"):
        (folder / name).mkdir()
        (folder / name / "0.png").touch()
    with pytest.warns(UserWarning, match=r"^tilted-badges is a task of the Attribute World; "):
        assert load_dataset("tilted-badges").world
    settings = DataSettings(root=folder / "data")
    for load in (load_images, read_listing):
        with pytest.raises(DataError, match=r"^OxfordPets is not in .*write \./OxfordPets"):
            load("OxfordPets", settings)


def test_a_benchmark_is_no_folder_of_domains(folder: Path) -> None:
    for name in ("ImageNetSketch", "source-sketch", "mine"):
        for domain in ("photo", "sketch"):
            for label in ("cat", "dog"):
                (folder / name / domain / label).mkdir(parents=True)
    for name in ("ImageNetSketch", "source-sketch"):
        assert DomainGeneralization("photo").arranged([name])[1] == (name,)
    for name in ("mine", "./source-sketch"):
        assert DomainGeneralization("photo").arranged([name])[1] == (os.path.join(name, "sketch"),)
