"""Data sets that are Python objects: the same data set as the files they come from, and what is refused."""

import warnings
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from pandas import DataFrame
from PIL import Image

from dear.data.dataset import Dataset
from dear.data.loading import load_dataset, load_for_training
from dear.data.settings import DataSettings
from dear.errors import DataError
from tests.helpers.errors import refuses
from tests.unit.data.photos import COUNTS, class_folders, load, picture


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*(has no split|are read)")
        yield


def listed(folder: Path) -> tuple[list[str], list[str]]:
    """The files of a folder of classes in another order, and the names of their classes."""
    paths = sorted(folder.rglob("*.png"), key=lambda path: path.name)
    return [str(path) for path in paths], [path.parent.name for path in paths]


def level(data: Dataset, part: str) -> list[tuple[int, str]]:
    """The level of each image of a split, with its class: as drawn, the number of the image in its class."""
    images = getattr(data, part)
    pictures = images.load(torch.arange(len(images)))
    names = [data.classnames[label] for label in images.labels.tolist()]
    return sorted(zip((int(picture.max()) for picture in pictures), names, strict=True))


def test_paths_and_labels_are_the_folder_that_they_come_from(tmp_path: Path, settings: DataSettings) -> None:
    """The same images, split, classes and identity, in whatever form and order."""
    folder = class_folders(tmp_path / "mine", COUNTS)
    expected = load(folder, settings)
    paths, labels = listed(folder)
    numbers = {name: number for number, name in enumerate(sorted(COUNTS))}
    forms: dict[str, Any] = {
        "pair": (paths, labels),
        "arrays": [np.array(paths), np.array(labels)],
        "columns": {"image_path": paths, "class": labels},
        "ImageFolder": SimpleNamespace(
            samples=[(path, numbers[label]) for path, label in zip(paths, labels, strict=True)],
            classes=[*numbers],
            root=str(folder),
        ),
    }
    for name, form in forms.items():
        data = load_dataset(form, settings)
        assert data.identity == expected.identity, name
        assert (data.name, data.classnames, data.keys) == ("mine", ("ant", "sea horse"), ("ant", "sea_horse"))
    numbered = load_dataset((paths, torch.tensor([numbers[label] for label in labels])), settings)
    assert numbered.classnames == ("0", "1")
    assert torch.equal(numbered.train.labels, expected.train.labels)


def test_a_data_frame_of_pandas(tmp_path: Path, settings: DataSettings) -> None:
    folder = class_folders(tmp_path / "mine", COUNTS)
    paths, labels = listed(folder)
    frame = DataFrame({"note": range(18), "path": paths, "label": labels})[::-1]
    assert load_dataset(frame, settings).identity == load(folder, settings).identity
    frame["split"] = ["test", "train"] * 9
    data = load_dataset(frame, settings)
    assert (len(data.train), len(data.test), data.val) == (9, 9, None)
    frame.loc[3, "label"] = float("nan")
    refuses(DataError, ("row 14", "nan"), load_dataset, frame, settings)


def test_images_in_memory(tmp_path: Path, settings: DataSettings) -> None:
    """Their identity is of pixels and labels: the same in every form, other if one differs."""
    for number in range(18):
        picture(tmp_path / "mine" / ("ant" if number < 7 else "sea_horse") / f"{number}.png", number)
    paths, labels = listed(tmp_path / "mine")
    arrays = [np.asarray(Image.open(path)) for path in paths]
    names = [label.replace("_", " ") for label in labels]
    wanted = sorted(zip((int(Path(path).stem) for path in paths), names, strict=True))
    pillow, contents = [Image.open(path) for path in paths], [Path(path).read_bytes() for path in paths]
    identities = set()
    for form in (pillow, contents, np.stack(arrays), arrays):
        data = load_dataset((form, labels), settings)
        assert (data.name, data.classnames) == ("images", ("ant", "sea horse"))
        assert (len(data.train), len(data.test)) == (13, 5)  # 7 * 0.7 = 5 and 11 * 0.7 = 8, rounded
        assert sorted(level(data, "train") + level(data, "test")) == wanted
        identities.add(data.identity)
    assert len(identities) == 1
    other = [*arrays[:-1], arrays[-1] + np.uint8(1)]
    assert data.identity != load_dataset((other, labels), settings).identity
    assert data.identity != load_dataset((arrays, labels[::-1]), settings).identity


def test_tables_of_the_library_datasets(tmp_path: Path, settings: DataSettings) -> None:
    """As they are in memory: selected and shuffled rows are not those of the files behind them."""
    datasets = pytest.importorskip("datasets")
    features = datasets.Features(
        {"image": datasets.Image(), "label": datasets.ClassLabel(names=["sea_horse", "ant"])}
    )

    def table(levels: range) -> Any:
        pictures = [Image.new("RGB", (7, 5), (n, n, n)) for n in levels]
        rows = {"image": pictures, "label": [n % 2 for n in levels]}
        return datasets.Dataset.from_dict(rows, features=features)

    parts = datasets.DatasetDict(
        train=table(range(8)), validation=table(range(8, 12)), test=table(range(20, 24))
    )
    data = load_dataset(parts, settings)
    assert data.classnames == ("sea horse", "ant")
    assert level(data, "train") == [(n, ("sea horse", "ant")[n % 2]) for n in range(8)]
    assert level(data, "val") == [(n, ("sea horse", "ant")[n % 2]) for n in range(8, 12)]
    table(range(40)).save_to_disk(tmp_path / "saved")
    saved = datasets.load_from_disk(str(tmp_path / "saved"))
    few = load_dataset(saved.shuffle(seed=1).select(range(20)), settings)
    rest = load_dataset(saved.shuffle(seed=1).select(range(20, 40)), settings)
    both = [level(data, part) for data in (few, rest) for part in ("train", "test")]
    assert sorted(chain(*both)) == [(n, ("sea horse", "ant")[n % 2]) for n in range(40)]
    assert few.identity != rest.identity
    settings = DataSettings(cache=settings.cache, columns="label=sort")
    refuses(DataError, ("image", "label with"), load_dataset, parts, settings)


def test_spaces_around_the_name_of_a_class(tmp_path: Path, settings: DataSettings) -> None:
    """They ended in a KeyError for ImageFolder and DearClassifier."""
    folder = class_folders(tmp_path / "mine", {"cat ": 2, "dog": 2})
    samples = [(str(path), "cd".index(path.parent.name[0])) for path in sorted(folder.rglob("*.png"))]
    classes = ["cat ", "dog"]
    forms = [
        load_dataset(SimpleNamespace(samples=samples, classes=classes, root=str(folder)), settings),
        load_for_training([path for path, _ in samples], ["cat ", "cat ", "dog", "dog"], classes, settings),
        load(folder, settings),
    ]  # fmt: skip
    assert {data.classnames for data in forms} == {("cat", "dog")}
    assert {data.keys for data in forms[:2]} == {("cat", "dog")}
    with pytest.raises(DataError, match="'cat' is listed twice"):
        load_for_training(["a.png", "b.png"], ["cat ", "cat"], ["cat", "cat "], settings)


def test_all_to_train_on(settings: DataSettings) -> None:
    arrays = list(np.zeros((3, 5, 7, 3), np.uint8))
    data = load_for_training(arrays, ["b", "a", "b"], ["b", "a"], settings)
    assert (len(data.train), len(data.test), data.classnames) == (3, 0, ("b", "a"))
    assert sorted(data.train.labels.tolist()) == [0, 0, 1]
    assert data.notes == ()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (7, "int is not a data set"),
        ((["a.png"], ["ant", "bee"]), "1 image and 2 labels"),
        ((["a.png"], [1.5]), "row 0: 1.5 (float)"),
        ((["a.png", "b.png"], [1.0, float("nan")]), "row 1: nan (float)"),
        ((["a.png", "b.png", "a.png"], ["ant", "ant", "bee"]), "a.png has two labels, 'ant' and 'bee'"),
        ({"path": ["a.png", "a.png"], "label": [0, 1]}, "a.png has two labels, '0' and '1'"),
        ((["a.png", "b.png"], ["ant,bee", "bee,ant"]), "row 0: the label 'ant,bee' looks like several"),
        ((["file:///a.png"], ["ant"]), "is on this machine: give its path"),
        ((["/nowhere/a.png", "/nowhere/b.png"], ["ant", "ant"]), ("/nowhere: ", "missing")),
        (([b"words", b"words"], ["ant", "ant"]), "image 00000"),
        (
            {"file": ["a.png"], "kind": ["ant"]},
            "one of label, labels, class, choice, class_name, category, target is needed",
        ),
        ({"path": ["a.png"], "label": ["ant"], "split": ["some"]}, "the split 'some'"),
    ],
)
def test_what_is_no_data_set_is_refused_in_one_line(data: Any, message: str, settings: DataSettings) -> None:
    refuses(DataError, message, load_dataset, data, settings)
