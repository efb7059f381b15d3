"""Names that mean something come before files and folders of that name."""

import os
from pathlib import Path

import pytest

from dear.backbone.choice import check_model, is_architecture, is_local
from dear.backbone.repository import find_repository
from dear.data.loading import load_dataset, load_images, read_listing
from dear.data.settings import DataSettings
from dear.errors import DataError, WeightsError
from dear.evaluation.protocols.transfer import DomainGeneralization
from dear.roles.phrases import embed_phrases
from dear.roles.sentences import MODEL


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("name", ["ViT-B-16", "ViT-B/16", "tiny"])
def test_an_architecture_comes_before_a_folder(name: str, folder: Path) -> None:
    (folder / name).mkdir(parents=True)
    check_model(name)
    assert is_architecture(name)
    assert find_repository(name) is None
    for path in (f"./{name}", str(folder / name)):
        source = find_repository(path)
        assert source is not None
        assert (source.name, source.folder) == (path, Path(path))


def test_weights_are_here_only_if_no_tag_has_their_name(folder: Path) -> None:
    for name in ("laion2b_s34b_b88k", "random:0", "mine"):
        (folder / name).touch()
    assert not is_local("ViT-B-16", "laion2b_s34b_b88k")
    assert not is_local("ViT-B/16", "laion2b_s34b_b88k")
    assert not is_local("ViT-B-16", "random:0")
    assert not is_local("ViT-B-16", "yours")
    assert is_local("ViT-B-16", "./laion2b_s34b_b88k")
    assert is_local("ViT-B-16", "mine")


def test_the_usual_sentence_model_is_the_hubs(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    (folder / MODEL).mkdir(parents=True)
    (folder / MODEL / "sentence_bert_config.json").write_text("?")
    with pytest.raises(WeightsError) as raised:
        embed_phrases(["a phrase of no pool"], MODEL)
    assert "sentence_bert_config" not in str(raised.value)
    with pytest.raises(WeightsError, match=r"sentence_bert_config\.json"):
        embed_phrases(["a phrase of no pool"], f"./{MODEL}")


def test_a_task_and_a_benchmark_come_before_folders(folder: Path) -> None:
    for name in ("tilted-badges", "OxfordPets"):
        (folder / name).mkdir()
        (folder / name / "0.png").touch()
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
        assert DomainGeneralization("photo").arrange([name])[1] == (name,)
    for name in ("mine", "./source-sketch"):
        assert DomainGeneralization("photo").arrange([name])[1] == (os.path.join(name, "sketch"),)
