"""Readers of the benchmarks' own files, used without CoOp's split list. Class names come from the package.

A reader returns the splits that the data set itself defines: train, val and test; or trainval and test; or
"all" if it defines none. The rest is split by `dear.data.sources.splits`.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dear.data.sources.domains import subfolders
from dear.data.sources.folder import class_rows, left_out
from dear.data.sources.listing import Row, require_inside
from dear.data.sources.naming import in_order, read_names
from dear.errors import DataError
from dear.reading.files import ReadingError, opened, read_lines

CLASSNAMES = "classnames.txt"


@dataclass(frozen=True)
class Source:
    """The folders and classes of a data set.

    Attributes:
        home: its folder; `images` is the image folder, which paths are relative to.
        names: class names in label order.
        wnids: folder names in label order, for ImageNet and its variants.
        ignored: folders that are not classes.
    """

    name: str
    home: Path
    images: Path
    names: tuple[str, ...]
    wnids: tuple[str, ...] | None
    ignored: tuple[str, ...]


@dataclass(frozen=True)
class Found:
    """The result of a reader."""

    keys: tuple[str, ...]
    names: tuple[str, ...]
    splits: Mapping[str, tuple[Row, ...]]
    origin: str = ""
    notes: tuple[str, ...] = ()


def class_folders(source: Source) -> Found:
    """One folder per class: matched by name if the folders have the class names, else sorted."""
    keys = [key for key in _subfolders(source, source.images) if key not in source.ignored]
    if {*keys} == {*source.names}:
        keys = [*source.names]
    if len(keys) != len(source.names):
        raise DataError(
            f"{source.images} has {len(keys)} folders of classes, but {source.name} has {len(source.names)}."
        )
    rows, other = class_rows(source.images, "", keys)
    return Found(tuple(keys), source.names, {"all": tuple(rows)}, notes=left_out(other))


def wnid_folders(source: Source) -> Found:
    """ImageNet: images/train/<wnid> and images/val/<wnid>; val is used for testing, as is usual."""
    train, first = _wnid_rows(source, "train")
    test, second = _wnid_rows(source, "val")
    splits = {"train": train, "test": test}
    return Found(_wnids(source), _wnid_names(source), splits, "train/, val/", left_out([*first, *second]))


def wnid_test_folders(source: Source) -> Found:
    """A test-only variant of ImageNet: images/<wnid>, for all or some of the classes."""
    test, other = _wnid_rows(source, "")
    splits: dict[str, tuple[Row, ...]] = {"train": (), "test": test}
    other = [path for path in other if path != "README.txt"]
    return Found(_wnids(source), _wnid_names(source), splits, "all to test on", left_out(other))


def numbered_folders(source: Source) -> Found:
    """ImageNetV2: one folder per class, named by its label."""
    keys = [str(label) for label in range(len(source.names))]
    _require_folders(source, source.images, keys)
    rows, other = class_rows(source.images, "", keys)
    names = source.names
    if (source.home / CLASSNAMES).is_file():  # in label order
        named = read_names(source.home / CLASSNAMES)
        names = tuple(in_order(keys, [*named.values()] if isinstance(named, dict) else named, CLASSNAMES))
    return Found(tuple(keys), names, {"train": (), "test": tuple(rows)}, "all to test on", left_out(other))


def pets(source: Source) -> Found:
    """OxfordPets: annotations/trainval.txt and test.txt, lines of image, label from 1, two more numbers."""
    splits = {}
    for part in ("trainval", "test"):
        lines = _lines(source, f"annotations/{part}.txt")
        splits[part] = tuple(
            Row(f"{line[0]}.jpg", _label(source, line[1:2], 1)) for line in map(str.split, lines)
        )
    return Found(source.names, source.names, splits, "annotations/test.txt")


def aircraft(source: Source) -> Found:
    """FGVCAircraft: images_variant_<split>.txt, lines of image and class name; variants.txt orders them."""
    labels = {name.strip(): label for label, name in enumerate(_lines(source, "variants.txt"))}
    splits = {}
    for part in ("train", "val", "test"):
        lines = (line.strip().partition(" ") for line in _lines(source, f"images_variant_{part}.txt"))
        splits[part] = tuple(Row(f"{image}.jpg", _known(source, labels, name)) for image, _, name in lines)
    return Found(tuple(labels), source.names, splits, "images_variant_*.txt")


def sun(source: Source) -> Found:
    """SUN397: Training_01.txt and Testing_01.txt, lines of "/a/abbey/sun.jpg"; order: ClassName.txt."""
    home = source.home if (source.home / "ClassName.txt").is_file() else source.images
    keys = tuple(line.strip().lstrip("/") for line in _lines(source, "ClassName.txt", home))
    for key in keys:
        require_inside("ClassName.txt", key)
    if not (home / "Training_01.txt").is_file():
        rows, other = class_rows(source.images, "", keys)
        return Found(keys, source.names, {"all": tuple(rows)}, notes=left_out(other))
    labels, splits = {key: label for label, key in enumerate(keys)}, {}
    for part, file in (("trainval", "Training_01.txt"), ("test", "Testing_01.txt")):
        paths = [line.strip().lstrip("/") for line in _lines(source, file, home)]
        splits[part] = tuple(Row(path, _known(source, labels, path.rpartition("/")[0])) for path in paths)
    return Found(keys, source.names, splits, "Testing_01.txt")


def ucf(source: Source) -> Found:
    """UCF101: ucfTrainTestlist/trainlist01.txt and testlist01.txt, lines of "ApplyLipstick/v_....avi"."""
    if not (source.home / "ucfTrainTestlist").is_dir():
        return class_folders(source)
    lines = (line.split() for line in _lines(source, "ucfTrainTestlist/classInd.txt"))
    labels = {name: _label(source, [number], 1) for number, name in lines}
    splits = {}
    for part, file in (("trainval", "trainlist01.txt"), ("test", "testlist01.txt")):
        rows = []
        for line in _lines(source, f"ucfTrainTestlist/{file}"):
            action, _, video = line.split()[0].partition("/")
            folder = "_".join(re.findall("[A-Z][^A-Z]*", action))
            rows.append(Row(f"{folder}/{video.removesuffix('.avi')}.jpg", _known(source, labels, action)))
        splits[part] = tuple(rows)
    return Found(tuple(labels), source.names, splits, "testlist01.txt")


def flowers(source: Source) -> Found:
    """OxfordFlowers: imagelabels.mat has the label, from 1, of each image in turn."""
    labels = _matlab(source, "imagelabels.mat")["labels"].flatten().tolist()
    rows = [Row(f"image_{i:05}.jpg", _label(source, [label], 1)) for i, label in enumerate(labels, start=1)]
    return Found(source.names, source.names, {"all": tuple(rows)})


def cars(source: Source) -> Found:
    """StanfordCars: devkit/cars_train_annos.mat and cars_test_annos_withlabels.mat."""
    splits = {}
    for part, folder, file in (
        ("trainval", "cars_train", "devkit/cars_train_annos.mat"),
        ("test", "cars_test", "cars_test_annos_withlabels.mat"),
    ):
        annotations = _matlab(source, file)["annotations"].flatten()
        splits[part] = tuple(
            Row(f"{folder}/{one['fname'].item()}", _label(source, [one["class"].item()], 1))
            for one in annotations
        )
    return Found(source.names, source.names, splits, "cars_test_annos_withlabels.mat")


READERS: Mapping[str, Callable[[Source], Found]] = {
    "class-folders": class_folders,
    "wnid-folders": wnid_folders,
    "wnid-test-folders": wnid_test_folders,
    "numbered-folders": numbered_folders,
    "pets": pets,
    "aircraft": aircraft,
    "sun": sun,
    "ucf": ucf,
    "flowers": flowers,
    "cars": cars,
}


def _wnids(source: Source) -> tuple[str, ...]:
    assert source.wnids is not None
    return source.wnids


def _wnid_names(source: Source) -> tuple[str, ...]:
    """Names from CoOp's classnames.txt if the folder has one, else the package's."""
    file = source.home / CLASSNAMES
    return tuple(in_order(_wnids(source), read_names(file), str(file))) if file.is_file() else source.names


def _wnid_rows(source: Source, within: str) -> tuple[tuple[Row, ...], list[str]]:
    _require_folders(source, source.images / within, _wnids(source))
    rows, other = class_rows(source.images, within, _wnids(source))
    return tuple(rows), other


def _require_folders(source: Source, place: Path, keys: tuple[str, ...] | list[str]) -> None:
    there = {*_subfolders(source, place)}
    if missing := [key for key in keys if key not in there]:
        raise DataError(
            f"{place} lacks {len(missing)} of the {len(keys)} folders of {source.name}; "
            f"the first is {missing[0]}."
        )


def _subfolders(source: Source, place: Path) -> list[str]:
    if not place.is_dir():
        raise DataError(
            f"{source.name} has no folder {place}. `dear data get {source.name}` says what to do."
        )
    return subfolders(place)


def _lines(source: Source, file: str, home: Path | None = None) -> list[str]:
    path = (home or source.home) / file
    try:
        lines = read_lines(path)
    except ReadingError as error:
        raise DataError(
            f"{source.name} has no split list in {source.home}, and {path} cannot be read ({error.reason}). "
            f"`dear data get {source.name}` says what to do."
        ) from error
    return [line for line in lines if line.strip() and not line.startswith("#")]


def _known(source: Source, labels: Mapping[str, int], name: str) -> int:
    if name not in labels or labels[name] >= len(source.names):
        raise DataError(f"{source.name} has no class {name!r}.")
    return labels[name]


def _label(source: Source, number: list[Any], first: int) -> int:
    """A label counted from `first`, converted to count from 0."""
    try:
        label = int(number[0]) - first
    except (ValueError, IndexError) as error:
        raise DataError(f"{source.name}: {number!r} is not a label.") from error
    if not 0 <= label < len(source.names):
        raise DataError(f"{source.name}: label {number[0]} is out of range, {first} to {len(source.names)}.")
    return label


def _matlab(source: Source, file: str) -> dict[str, Any]:
    try:
        from scipy.io import loadmat
    except ImportError as error:
        raise DataError(
            f"{source.name} has no split list in {source.home}, and its own labels are MATLAB files: "
            "`pip install scipy` to read them, or download the split list."
        ) from error
    path = source.home / file
    try:
        with opened(path) as mat:
            return dict(loadmat(mat))
    except Exception as error:  # scipy has no common exception class for damaged files
        raise DataError(
            f"{source.name} has no split list in {source.home}, and {path} cannot be read ({error}). "
            f"`dear data get {source.name}` says what to do."
        ) from error
