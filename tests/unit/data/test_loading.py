"""Names and paths lead to data sets; identities change with what they name."""

from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from dear.backbone.loading.hub import find_repository
from dear.backbone.names import check_model, is_architecture
from dear.data.dataset import Images, assemble
from dear.data.loading import load_dataset, load_images, read_listing
from dear.data.settings import DataSettings
from dear.errors import DataError, UnknownNameError
from tests.helpers.errors import refuses
from tests.unit.data.photos import class_folders, load


@dataclass
class Plain:
    """Blank pictures, as small as can be."""

    identity: str
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def load(self, indices: Tensor) -> Tensor:
        return torch.zeros(len(indices), 3, 5, 7, dtype=torch.uint8)


def plain(identity: str) -> Images:
    return Plain(identity, torch.tensor([0, 1, 1]))


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two tasks in place of the Attribute World's own."""
    monkeypatch.setattr("dear.data.loading.task_names", lambda: ["badges", "tools"])
    monkeypatch.setattr(
        "dear.data.loading.load_task",
        lambda name: SimpleNamespace(
            name=name,
            title=name.title(),
            classnames=["red badge", "blue badge"],
            template="a {}.",
            train=plain("one"),
            val=None,
            test=plain("two"),
        ),
    )


@pytest.mark.usefixtures("world")
class TestLoadDataset:
    def test_a_task_by_its_name(self) -> None:
        data = load_dataset("badges")
        assert (data.name, data.title, data.templates) == ("badges", "Badges", ("a {}.",))
        assert data.classnames == ("red badge", "blue badge")
        assert (data.train.identity, data.val, data.test.identity) == ("one", None, "two")

    def test_an_unknown_name_lists_the_tasks(self) -> None:
        with pytest.raises(UnknownNameError, match="Did you mean 'badges'") as caught:
            load_dataset("bages")
        assert caught.value.kind == "data set"
        assert {"badges", "tools", "Caltech101"} < {*caught.value.known}

    @pytest.mark.parametrize("path", ["no/such/folder", "./nothing", "nothing.d"])
    def test_a_path_that_does_not_exist(self, path: str) -> None:
        refuses(DataError, "does not exist", load_dataset, path)


def test_the_identity_changes_with_images_names_and_templates() -> None:
    train, other, test = plain("train"), plain("other"), plain("test")
    made = [
        assemble("a", "A", ["x", "y"], ["{}"], train, None, test),
        assemble("a", "A", ["x", "y"], ["{}"], other, None, test),
        assemble("a", "A", ["x", "y"], ["{}"], test, None, train),
        assemble("a", "A", ["x", "y"], ["{}"], train, other, test),
        assemble("a", "A", ["x", "z"], ["{}"], train, None, test),
        assemble("a", "A", ["x", "y"], ["a {}"], train, None, test),
    ]
    assert len({data.identity for data in made}) == len(made)
    assert assemble("b", "B", ["x", "y"], ["{}"], train, None, test).identity == made[0].identity


class TestNamesAndPaths:
    """A name is a benchmark, a path is what lies there."""

    @pytest.fixture
    def dtd(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        """A user's own folder with the benchmark's name and a class called as its folder of images."""
        monkeypatch.chdir(tmp_path)
        return class_folders(tmp_path / "dtd", {"images": 3, "sounds": 3})

    def test_a_path_is_read_as_it_lies_there(self, dtd: Path, settings: DataSettings) -> None:
        for place in ("./dtd", str(dtd)):
            with pytest.warns(UserWarning, match="no split"):
                data = load_dataset(place, settings)
            assert (data.classnames, data.templates) == (("images", "sounds"), ("a photo of a {}.",))
            assert (data.name, data.title) == ("own-dtd", "own-dtd")  # no published setting or result is its

    @pytest.mark.usefixtures("dtd")
    def test_a_name_is_the_benchmark(self, settings: DataSettings) -> None:
        refuses(DataError, "./dtd", load_dataset, "dtd", settings)

    def test_a_table_with_a_benchmarks_name(self, dtd: Path, settings: DataSettings) -> None:
        lines = ["path,label,split", "dtd/images/0.png,a,test", "dtd/images/1.png,b,test"]
        (table := dtd.parent / "food101.csv").write_text("\n".join(lines))
        data = load(table, settings)
        assert (data.name, len(data.train), len(data.test)) == ("own-food101", 0, 2)
        assert "can only be tested on" in data.notes[0]


@pytest.mark.parametrize("name", ["{}/phtos", "{}/photos.cvs", "phtos"])
def test_a_misspelt_path_suggests_what_lies_beside(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos.csv").touch()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match=r"Did you mean .*photos(\.csv)?\?") as caught:
        load_dataset(name.format(tmp_path))
    assert "caltech" not in str(caught.value)


def test_how_a_correction_is_split_is_not_told(tmp_path: Path, settings: DataSettings) -> None:
    class_folders(tmp_path / "photos", {"ant": 4, "owl": 4})
    (tmp_path / "list.csv").write_text("path,label\nphotos/ant/1.png,owl\n")
    notes = load_dataset([str(tmp_path / "photos"), str(tmp_path / "list.csv")], settings).notes
    assert sum("no split" in note for note in notes) == 1  # of the photos
    assert any("changes the class of 1" in note for note in notes)


def test_sources_that_are_added_to_the_first(tmp_path: Path, settings: DataSettings) -> None:
    """The class of an image is that of its last source; classes are the same by their names."""
    class_folders(tmp_path / "photos" / "train", {"ant": 2, "sea_horse": 2})
    class_folders(tmp_path / "photos" / "test", {"ant": 1, "sea_horse": 1})
    class_folders(tmp_path / "more", {"owl": 2})
    rows = ["photos/train/ant/1.png,Sea Horse,train", "more/owl/0.png,owl,train", "more/owl/1.png,owl,test"]
    (tmp_path / "list.csv").write_text("\n".join(["path,label,split", *rows]))
    with pytest.warns(UserWarning, match="list adds 2 images and changes the class of 1"):
        data = load_dataset([tmp_path / "photos", str(tmp_path / "list.csv")], settings)
    assert (data.name, data.classnames) == ("photos", ("ant", "sea horse", "owl"))
    found = {
        part: {path: data.classnames[label] for path, label in zip(images.paths, images.labels, strict=True)}
        for part, images in {"train": data.train, "test": data.test}.items()
    }
    assert found["train"] == {
        "photos/train/ant/0.png": "ant", "photos/train/ant/1.png": "sea horse",
        "photos/train/sea_horse/0.png": "sea horse", "photos/train/sea_horse/1.png": "sea horse",
        "more/owl/0.png": "owl",
    }  # fmt: skip
    assert len(found["test"]) == 3
    assert len(data.train.load(torch.arange(5))) == 5


def test_a_class_that_only_a_later_source_has_is_told(tmp_path: Path, settings: DataSettings) -> None:
    class_folders(tmp_path / "photos", {"dalmatian": 2, "ant": 2})
    (tmp_path / "corrected.csv").write_text("path,label\nphotos/ant/0.png,dalmatain\n")
    data = load_dataset([tmp_path / "photos", tmp_path / "corrected.csv"], settings)
    assert any("'dalmatain'" in note and "'dalmatian'" in note for note in data.notes)


@pytest.mark.parametrize("name", ["ViT-B-16", "ViT-B/16", "tiny"])
def test_an_architecture_comes_before_a_folder(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / name).mkdir(parents=True)
    check_model(name)
    assert is_architecture(name)
    assert find_repository(name) is None
    for path in (f"./{name}", str(tmp_path / name)):
        source = find_repository(path)
        assert source is not None
        assert (source.name, source.folder) == (path, Path(path))


def test_a_task_and_a_benchmark_come_before_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("tilted-badges", "OxfordPets"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "0.png").touch()
    assert load_dataset("tilted-badges").world
    settings = DataSettings(root=tmp_path / "data")
    for read in (load_images, read_listing):
        refuses(DataError, ("OxfordPets is not in", "./OxfordPets"), read, "OxfordPets", settings)
