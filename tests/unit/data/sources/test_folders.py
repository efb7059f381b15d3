"""Folders as people have them: classes, splits under many names, domains, what is left out and refused."""

import json
from collections import Counter
from dataclasses import replace
from itertools import chain, product
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torchvision.datasets import ImageFolder

from dear.data.loading import load_dataset, load_images
from dear.data.settings import DataSettings
from dear.data.sources.folder import domains_of, image_files
from dear.errors import DataError
from dear.evaluation.protocols.transfer import DomainGeneralization
from dear.text import fingerprint
from tests.helpers.data import pack
from tests.helpers.errors import refuses
from tests.unit.data.photos import COUNTS, class_folders, load, paths, picture, refused

Tree = dict[str, int]
"""The number of images in each folder; a folder that is called "" is the data set's own."""


def grow(root: Path, tree: Tree) -> Path:
    for name in tree:
        (root / name).mkdir(parents=True, exist_ok=True)
    return class_folders(root, tree)


def both(*parents: str, ant: int = 2, bee: int = 2) -> Tree:
    """Two classes in each of these folders."""
    return {f"{parent}/{name}": count for parent in parents for name, count in (("ant", ant), ("bee", bee))}


LEFT = "its other folders are left out: {}"
UNLABELED = "test/ has no folders of classes and is left out"
STORIES: dict[str, tuple[Tree, tuple[int, int, int], tuple[str, ...]]] = {
    "splits": (both("train", "test"), (4, 0, 4), ()),
    "three splits": (both("train", "test", "val"), (4, 4, 4), ()),
    "names of other people": (both("Training", "Testing"), (4, 0, 4), ()),
    "training_set": (both("training_set/training_set", "test_set/test_set"), (4, 0, 4), ()),
    "val is tested on": (
        both("train", "eval"), (4, 0, 4), ("it has no labeled test images: eval is used for testing",)
    ),
    "the usual name counts": (both("train", "test", "val", "dev"), (4, 4, 4), (LEFT.format("dev"),)),
    "other folders": (both("train", "test") | {"extra/owl": 2}, (4, 0, 4), (LEFT.format("extra"),)),
    "withheld labels": (both("train", "val") | {"test": 3}, (4, 0, 4), (
        UNLABELED, "it has no labeled test images: val is used for testing",
    )),
    "a class without test images": (
        both("train") | {"test/ant": 2, "test/bee": 0}, (4, 0, 2), ("test/ has no images of bee",)
    ),
    "loose images": (both("train", "test") | {"": 1, "test": 1}, (4, 0, 4), (
        "2 images lie beside the folders of classes and are left out: 0.png, test/0.png",
    )),
    "only test images": (both("test"), (0, 0, 4), ("{} has only test/: all its images are for testing",)),
    "only images to train on": (both("train", ant=7, bee=3), (7, 0, 3), ("{} has only train/",)),
    "test images without labels": (both("train", ant=7, bee=3) | {"test": 3}, (7, 0, 3), (UNLABELED,)),
    "an empty test folder": (both("train", ant=7, bee=3) | {"test": 0}, (7, 0, 3), (UNLABELED,)),
}  # fmt: skip


@pytest.mark.parametrize("story", STORIES)
def test_splits(story: str, tmp_path: Path, settings: DataSettings) -> None:
    tree, counts, notes = STORIES[story]
    data = load(grow(tmp_path / "d", tree), settings)
    assert (data.name, data.classnames) == ("d", ("ant", "bee"))
    assert (len(data.train), len(data.val or ()), len(data.test)) == counts  # type: ignore[arg-type]
    told = tuple(note for note in data.notes if "the data has no split" not in note)
    assert told == tuple(note.format(tmp_path / "d") for note in notes)
    pictures = data.test.load(torch.arange(len(data.test)))
    assert [int(picture[0, 0, 0]) for picture in pictures] == [
        int(Path(path).stem)
        for path in data.test.paths  # type: ignore[attr-defined]
    ]


REFUSED: dict[str, tuple[Tree, str]] = {
    "empty classes": ({"ant": 0, "fox": 0}, "has no images"),
    "two of a split": (both("train", "Training", "test"), "Training and train are both the train split"),
    "no train": (both("val", "test"), "has no train folder beside test, val: give one of them alone"),
    "holdout": (both("train", "holdout"), "holdout/ holds classes of train/, but is not called like a split"),
    "no images to test on": (both("train") | {"test/ant": 0}, "test has no images"),
}


@pytest.mark.parametrize("tree", [{"ant": 2, "bee": 2, "fox": 0}, both("train", "test") | {"train/fox": 0}])
def test_an_empty_folder_is_a_class_by_name(tree: Tree, tmp_path: Path, settings: DataSettings) -> None:
    data = load(grow(tmp_path / "d", tree), settings)
    assert data.classnames == ("ant", "bee", "fox")
    assert {*data.train.labels.tolist()} == {0, 1}
    assert "classes by name alone, without an image: fox" in data.notes


@pytest.mark.parametrize("story", REFUSED)
def test_refusals(story: str, tmp_path: Path, settings: DataSettings) -> None:
    tree, message = REFUSED[story]
    refused(grow(tmp_path / "d", tree), settings, message)


@pytest.mark.parametrize(
    ("tree", "options", "classes"),
    [
        ({"train": 2, "bus": 2, "valid": 2}, {}, ("bus", "train", "valid")),
        (both("train", "holdout"), {"layout": "classes"}, ("holdout", "train")),
        ({"__background__": 2, "__MACOSX": 2, "ant": 2}, {}, ("background", "ant")),
        (both("art", "photo"), {}, ("ant", "bee")),
        (both("art", "photo"), {"layout": "classes"}, ("art", "photo")),
        (both("art", "photo") | {"clip/car": 2}, {}, ("art", "clip", "photo")),
        (both("art", "photo") | {"clip/car": 2}, {"layout": "domains"}, ("ant", "bee", "car")),
    ],
)
def test_what_the_folders_are(
    tree: Tree, options: dict[str, Any], classes: tuple[str, ...], tmp_path: Path, settings: DataSettings
) -> None:
    assert load(grow(tmp_path / "d", tree), replace(settings, **options)).classnames == classes


class TestOwnSplit:
    def test_it_is_made_recorded_and_told(self, tmp_path: Path, settings: DataSettings) -> None:
        folder = class_folders(tmp_path / "mine", COUNTS)
        with pytest.warns(UserWarning, match=r"mine: .* no split: .* 30% for testing \(seed 1; list: /"):
            data = load_dataset(str(folder), settings)
        assert (data.name, data.classnames) == ("mine", ("ant", "sea horse"))
        assert data.templates == ("a photo of a {}.",)
        assert Counter(data.train.labels.tolist()) == {0: 5, 1: 8}  # 7 x 0.7 = 4.9, 11 x 0.7 = 7.7
        assert Counter(data.test.labels.tolist()) == {0: 2, 1: 3}
        (record,) = (tmp_path / "cache" / "splits").iterdir()
        listed = json.loads(record.read_text())
        assert record.read_text() == json.dumps(listed, indent=0)
        assert record.stem == f"split_dear_mine-{fingerprint(record.read_text())}"
        assert {path for path, _, _ in listed["test"]} == paths(data)["test"]
        assert {name for _, _, name in listed["train"]} == {"ant", "sea_horse"}
        assert load(folder, settings).identity == data.identity
        assert paths(load(folder, replace(settings, split_seed=2)))["test"] != paths(data)["test"]
        record.rename(folder / "split_zhou_Mine.json")  # as a list of CoOp's
        assert paths(load(folder, settings)) == paths(data)

    @pytest.mark.parametrize(("share", "train", "test"), [(1.0, 0, 18), (0.0, 18, 0)])
    def test_all_images_are_for_one_part_if_asked(
        self, share: float, train: int, test: int, tmp_path: Path, settings: DataSettings
    ) -> None:
        data = load(class_folders(tmp_path / "mine", COUNTS), replace(settings, test_share=share))
        assert (len(data.train), len(data.test)) == (train, test)
        assert not (tmp_path / "cache" / "splits").exists()


class TestFiles:
    def test_others_are_left_out_and_counted(self, tmp_path: Path, settings: DataSettings) -> None:
        class_folders(tmp_path / "d", COUNTS)
        (tmp_path / "d/ant/readme.txt").write_text("x")
        (tmp_path / "d/ant/.hidden.png").write_text("x")
        picture(tmp_path / "d/ant/deeper/9.PNG")
        data = load(tmp_path / "d", settings)
        assert len(data.train) + len(data.test) == 19
        assert "1 file has no image suffix and is left out: ant/readme.txt" in data.notes

    def test_images_of_other_formats_are_named_as_such(self, tmp_path: Path, settings: DataSettings) -> None:
        class_folders(tmp_path / "d", COUNTS)
        for name in ("a.JP2", "b.dcm"):
            (tmp_path / "d/ant" / name).write_bytes(b"x")
        [note] = [note for note in load(tmp_path / "d", settings).notes if "b.dcm" in note]
        assert note.startswith("2 images in a format that is not read are left out (save as JPEG")
        for folder in ("ant", "bee"):
            (tmp_path / "scans" / folder).mkdir(parents=True)
            (tmp_path / "scans" / folder / "0.dcm").write_bytes(b"x")
        refused(tmp_path / "scans", settings, "format that is not read")

    @pytest.mark.parametrize("form", ["classes", "splits", "domains", "ImageFolder", "zip"])
    def test_what_systems_leave_is_passed_over(
        self, form: str, tmp_path: Path, settings: DataSettings
    ) -> None:
        """At every depth: thumbnails, recycled images and resource forks are no photographs."""
        clean, littered = tmp_path / "clean/d", tmp_path / "littered/d"
        tops = {"splits": ("train", "test"), "domains": ("art", "photo")}.get(form, ("",))
        for folder, top in product((clean, littered), tops):
            class_folders(folder / top, COUNTS)
        for name in ("@eaDir", ".thumbnails", "__MACOSX", ".AppleDouble", "$RECYCLE.BIN", "lost+found"):
            picture(littered / name / "0.png/SYNO_THUMB_M.jpg", 99)
            picture(littered / tops[-1] / "ant" / name / "1.png", 98)
        picture(littered / tops[-1] / "sea_horse/._0.png", 97)
        (littered / tops[-1] / "ant/Thumbs.db").write_bytes(b"x")
        expected, source = load(clean, settings), cast(Any, littered)
        if form == "ImageFolder":
            source = ImageFolder(str(littered))
        elif form == "zip":
            source = pack(tmp_path / "d.zip", littered)
        data = load(source, settings)
        assert (data.classnames, paths(data)) == (expected.classnames, paths(expected))
        assert data.identity == expected.identity
        (note,) = [note for note in data.notes if "passed over" in note]
        assert note.startswith("13 entries are hidden or left by a system")
        with pytest.warns(UserWarning, match="13 entries are hidden"):
            found = image_files(littered)
        assert {*found} == {littered / path for path in chain(*paths(expected).values())}

    def test_a_plain_folder_where_no_labels_are_needed(self, tmp_path: Path, settings: DataSettings) -> None:
        """Only its own files, all of them; any other place is as `load_dataset` reads it."""
        plain = grow(tmp_path / "plain", {"": 3})
        (plain / "readme.txt").write_text("x")
        with pytest.warns(UserWarning, match=r"left out: readme\.txt"):
            data = load_images(str(plain), settings)
        assert (data.name, data.classnames, data.train.labels.tolist()) == ("plain", (), [0, 0, 0])
        assert (len(data.test), data.val) == (0, None)
        assert [int(p[0, 0, 0]) for p in data.train.load(torch.tensor([2, 1]))] == [2, 1]
        folder = class_folders(tmp_path / "mine", COUNTS)
        with pytest.warns(UserWarning, match="no split"):
            assert load_images(str(folder), settings).identity == load(folder, settings).identity
        (tmp_path / "empty").mkdir()
        refuses(DataError, ("empty", "suffix"), load_images, str(tmp_path / "empty"), settings)


class TestDomains:
    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        """A painted dog and two houses; three of each in photographs."""
        return grow(
            tmp_path / "pacs",
            {"art/dog": 1, "art/house": 2, "photo/dog": 3, "photo/house": 3, "photo/bird": 0},
        )

    @pytest.mark.parametrize(
        "tree",
        [
            {"dog": 2, "house": 2},
            {f"{name}/{piece}": 2 for name in ("dog", "house") for piece in ("split_1", "Fold-2", "part 3")},
            both("dog", "house") | {"train/ant": 1},
            {"dog/train": 1, "dog/test": 1, "house/train": 1, "house/test": 1},
            both("train", "test"),
            {"a/abbey": 1, "a/alley": 1, "b/bar": 1, "b/beach": 1},  # initials, as in SUN397
            both("photo"),
            {"dog/images": 1, "house/images": 1},
            both("art", "photo") | {"photo": 1},  # images beside the folders are those of a class
        ],
    )
    def test_what_is_none(self, tree: Tree, tmp_path: Path) -> None:
        assert domains_of(grow(tmp_path / "d", tree)) == ()

    def test_the_images_of_a_class_come_from_all(self, folder: Path, settings: DataSettings) -> None:
        assert domains_of(folder) == ("art", "photo")  # 2 of 3 folders are shared
        (folder / "photo/bird").rmdir()
        with pytest.warns(UserWarning, match=r"domains of the same classes: art \(3 images\), photo \(6 im"):
            data = load_dataset(str(folder), settings)
        assert data.classnames == ("dog", "house")
        assert Counter([*data.train.labels.tolist(), *data.test.labels.tolist()]) == {0: 4, 1: 5}

    def test_one_is_the_source_and_the_others_are_targets(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Relative paths stay paths: a bare "photo" could be the name of a task."""
        (folder / "sketch").mkdir()
        for source in ("art", str(folder / "art")):
            protocol, data = DomainGeneralization(source).arrange([str(folder)])
            assert protocol == DomainGeneralization(str(folder / "art"))
            assert data == (str(folder / "photo"), str(folder / "sketch"))
        monkeypatch.chdir(folder)
        assert DomainGeneralization("art").arrange(["."]) == (
            DomainGeneralization("./art"), ("./photo", "./sketch"),
        )  # fmt: skip
