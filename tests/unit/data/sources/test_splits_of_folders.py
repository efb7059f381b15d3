"""Folders of splits as people have them: other names, other folders beside them, classes without images."""

from dataclasses import replace
from pathlib import Path

import pytest

from dear.data.settings import DataSettings
from dear.data.sources.splits import names_of_splits, split_of
from dear.errors import DataError
from tests.unit.data.photos import COUNTS, class_folders, load, paths, picture, refused


@pytest.mark.parametrize(
    ("names", "split"),
    [
        (["train", "Training", "training_set", "train images", "TRAIN-DATA", "trainset"], "train"),
        (["val", "valid", "Validation", "validate", "dev", "eval", "validation_set"], "val"),
        (["test", "Testing", "test_set", "Test Data"], "test"),
        (["set", "tests", "trainer", "latest", "data", "tested", "evaluate me", ""], None),
    ],
)
def test_names_of_splits(names: list[str], split: str | None) -> None:
    assert {split_of(name) for name in names} == {split}


@pytest.mark.parametrize("names", [("Training", "Testing"), ("training_set", "test_set"), ("train", "eval")])
def test_folders_of_splits(names: tuple[str, str], tmp_path: Path, settings: DataSettings) -> None:
    """Training and Testing were two classes, without a word."""
    for name, count in zip(names, (3, 2), strict=True):
        class_folders(tmp_path / "d" / name, {"glioma": count, "none": count})
    data = load(tmp_path / "d", settings)
    assert (data.classnames, len(data.train), len(data.test)) == (("glioma", "none"), 6, 4)


def test_the_usual_name_of_a_split_counts(tmp_path: Path, settings: DataSettings) -> None:
    for name in ("train", "test", "val", "dev"):
        class_folders(tmp_path / "d" / name, {"ant": 2, "bee": 2 if name == "val" else 3})
    data = load(tmp_path / "d", settings)
    assert (data.val is not None and len(data.val), data.notes) == (
        4,
        ("its other folders are left out: dev",),
    )
    for names in (["dev", "eval"], ["val", "VAL"]):
        with pytest.raises(DataError, match=f"{names[0]} and {names[1]} are both the val split: merge them"):
            names_of_splits(["train", *names], "x")


def test_a_folder_of_the_same_classes_that_is_no_split(tmp_path: Path, settings: DataSettings) -> None:
    for name in ("train", "holdout"):
        class_folders(tmp_path / "d" / name, COUNTS)
    refused(tmp_path / "d", settings, r"holdout/ holds classes of train/, but is not called like a split")
    as_classes = load(tmp_path / "d", replace(settings, layout="classes"))
    assert as_classes.classnames == ("holdout", "train")


def test_test_images_without_labels(tmp_path: Path, settings: DataSettings) -> None:
    """As in competitions: refused, though val/ or a part of train/ can be tested on."""
    class_folders(tmp_path / "d" / "train", COUNTS)
    class_folders(tmp_path / "d" / "extra", {"owl": 1})
    for number in range(3):
        picture(tmp_path / "d" / "test" / f"{number}.png")
    told = ("its other folders are left out: extra", "test/ has no folders of classes and is left out")
    data = load(tmp_path / "d", settings)
    assert (data.name, len(data.train), len(data.test), data.notes[:2]) == ("d", 13, 5, told)
    class_folders(tmp_path / "d" / "val", {"ant": 2, "sea_horse": 2})
    data = load(tmp_path / "d", settings)
    assert (len(data.train), len(data.test)) == (18, 4)
    assert data.notes == (*told, "it has no labelled test images: val is used for testing")


def test_an_empty_test_folder(tmp_path: Path, settings: DataSettings) -> None:
    class_folders(tmp_path / "d" / "train", COUNTS)
    (tmp_path / "d" / "test").mkdir()
    data = load(tmp_path / "d", settings)
    assert (len(data.train), data.notes[0]) == (13, "test/ has no folders of classes and is left out")


def test_a_split_within_a_folder_of_its_name(tmp_path: Path, settings: DataSettings) -> None:
    """As some zips are packed."""
    for name in ("training_set", "test_set"):
        class_folders(tmp_path / "d" / name / name, COUNTS)
    data = load(tmp_path / "d", settings)
    assert (data.classnames, len(data.train), len(data.test), data.notes) == (
        ("ant", "sea horse"),
        18,
        18,
        (),
    )
    assert "training_set/training_set/ant/0.png" in paths(data)["train"]


def test_splits_without_one_to_train_on(tmp_path: Path, settings: DataSettings) -> None:
    for name in ("val", "test"):
        class_folders(tmp_path / "d" / name, COUNTS)
    refused(tmp_path / "d", settings, "has no train folder beside test, val: give one of them alone")


def test_a_class_called_like_a_split(tmp_path: Path, settings: DataSettings) -> None:
    class_folders(tmp_path / "d", {"train": 2, "bus": 2, "valid": 2})
    assert load(tmp_path / "d", settings).classnames == ("bus", "train", "valid")


def test_what_is_left_out_is_told(tmp_path: Path, settings: DataSettings) -> None:
    for name in ("train", "test"):
        class_folders(tmp_path / "d" / name, COUNTS)
    class_folders(tmp_path / "d" / "extra", {"owl": 2})
    picture(tmp_path / "d" / "sample.png")
    picture(tmp_path / "d" / "test" / "7.png")
    assert load(tmp_path / "d", settings).notes == (
        "its other folders are left out: extra",
        "2 images lie beside the folders of classes and are left out: sample.png, test/7.png",
    )
    picture(class_folders(tmp_path / "e", COUNTS) / "a.png")
    assert load(tmp_path / "e", settings).notes[1:] == (
        "1 image lies beside the folders of classes and is left out: a.png",
    )


def test_a_class_without_images_to_test_on(tmp_path: Path, settings: DataSettings) -> None:
    class_folders(tmp_path / "d" / "train", COUNTS)
    class_folders(tmp_path / "d" / "test", {"ant": 2})
    (tmp_path / "d" / "test" / "sea_horse").mkdir()
    data = load(tmp_path / "d", settings)
    assert (data.test.labels.tolist(), data.notes) == ([0, 0], ("test/ has no images of sea_horse",))
    for name in ("0.png", "1.png"):
        (tmp_path / "d" / "test" / "ant" / name).unlink()
    refused(tmp_path / "d", settings, "test has no images")


def test_folders_that_only_look_like_those_of_programs(tmp_path: Path, settings: DataSettings) -> None:
    class_folders(tmp_path / "d", {"__background__": 2, "__MACOSX": 2, "ant": 2})
    assert load(tmp_path / "d", settings).classnames == ("background", "ant")
