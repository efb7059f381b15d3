"""Names that mean something come before files and folders of that name."""

from pathlib import Path

import pytest

from dear.backbone.choice import check_model, is_architecture
from dear.backbone.repository import find_repository
from dear.data.loading import load_dataset, load_images, read_listing
from dear.data.settings import DataSettings
from dear.errors import DataError


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


def test_a_task_and_a_benchmark_come_before_folders(folder: Path) -> None:
    for name in ("tilted-badges", "OxfordPets"):
        (folder / name).mkdir()
        (folder / name / "0.png").touch()
    assert load_dataset("tilted-badges").world
    settings = DataSettings(root=folder / "data")
    for load in (load_images, read_listing):
        with pytest.raises(DataError, match=r"^OxfordPets is not in .*write \./OxfordPets"):
            load("OxfordPets", settings)
