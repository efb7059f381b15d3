"""Readers of the benchmarks' own files, used without CoOp's split list. Class names come from the package.

A reader returns the splits that the data set itself defines: train, val and test; or trainval and test; or
"all" if it defines none. `dear.data.sources.splits` divides the last two.
"""

import io
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from dear.data.sources.folder import class_images, ignored_note, subfolders
from dear.data.sources.listing import Row, require_inside
from dear.data.sources.naming import match_names, read_names
from dear.errors import DataError, first_line
from dear.limits import LimitError, at_most
from dear.reading.files import ReadingError, has_links, read_bytes, read_lines
from dear.reading.isolated import isolated
from dear.reading.typed import shown

Entry = TypeVar("Entry")
CLASSNAMES = "classnames.txt"
MATLAB_SECONDS, MATLAB_BYTES = 5, 2**29
"""What reading a MATLAB file may take: 16,185 records, as many as a benchmark has, take 0.3 s."""


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
class SourceRows:
    """The classes and rows of a data set.

    Attributes:
        keys: folders or labels of the classes, in label order; `names` are their names.
        splits: rows by part: train, val and test; or trainval and test; or "all".
    """

    keys: tuple[str, ...]
    names: tuple[str, ...]
    splits: Mapping[str, tuple[Row, ...]]
    origin: str = ""
    notes: tuple[str, ...] = ()


def class_folders(source: Source) -> SourceRows:
    """One folder per class: matched by name if the folders have the class names, else sorted."""
    keys = [key for key in _subfolders(source, source.images) if key not in source.ignored]
    if {*keys} == {*source.names}:
        keys = [*source.names]
    if len(keys) != len(source.names):
        raise DataError(
            f"{source.images} has {len(keys)} folders of classes, but {source.name} has {len(source.names)}."
        )
    rows, ignored = class_images(source.images, "", keys)
    return SourceRows(tuple(keys), source.names, {"all": tuple(rows)}, notes=ignored_note(ignored))


def wnid_folders(source: Source) -> SourceRows:
    """ImageNet: images/train/<wnid> and images/val/<wnid>; val is used for testing, as is usual."""
    train, first = _wnid_rows(source, "train")
    test, second = _wnid_rows(source, "val")
    splits = {"train": train, "test": test}
    return SourceRows(
        _wnids(source), _wnid_names(source), splits, "train/, val/", ignored_note([*first, *second])
    )


def wnid_test_folders(source: Source) -> SourceRows:
    """A test-only variant of ImageNet: images/<wnid>, for all or some of the classes."""
    test, ignored = _wnid_rows(source, "")
    splits: dict[str, tuple[Row, ...]] = {"train": (), "test": test}
    ignored = [path for path in ignored if path != "README.txt"]
    return SourceRows(_wnids(source), _wnid_names(source), splits, "all to test on", ignored_note(ignored))


def numbered_folders(source: Source) -> SourceRows:
    """ImageNetV2: one folder per class, named by its label."""
    keys = [str(label) for label in range(len(source.names))]
    _require_folders(source, source.images, keys)
    rows, ignored = class_images(source.images, "", keys)
    names = source.names
    if (source.home / CLASSNAMES).is_file():  # in label order
        listed = read_names(source.home / CLASSNAMES)
        names = tuple(
            match_names(keys, [*listed.values()] if isinstance(listed, dict) else listed, CLASSNAMES)
        )
    return SourceRows(
        tuple(keys), names, {"train": (), "test": tuple(rows)}, "all to test on", ignored_note(ignored)
    )


def pets(source: Source) -> SourceRows:
    """OxfordPets: annotations/trainval.txt and test.txt, lines of image, label from 1, two more numbers."""
    files = {part: f"annotations/{part}.txt" for part in ("trainval", "test")}
    splits = {}
    for part, lines in _lists(source, files).items():
        splits[part] = tuple(
            Row(f"{line[0]}.jpg", _label(source, line[1:2], 1)) for line in map(str.split, lines)
        )
    return SourceRows(source.names, source.names, splits, "annotations/test.txt")


def aircraft(source: Source) -> SourceRows:
    """FGVCAircraft: images_variant_<split>.txt, lines of image and class name; variants.txt orders them."""
    labels = {name.strip(): label for label, name in enumerate(_names(source, "variants.txt"))}
    files = {part: f"images_variant_{part}.txt" for part in ("train", "val", "test")}
    splits = {}
    for part, lines in _lists(source, files).items():
        words = (line.strip().partition(" ") for line in lines)
        splits[part] = tuple(Row(f"{image}.jpg", _label_of(source, labels, name)) for image, _, name in words)
    return SourceRows(tuple(labels), source.names, splits, "images_variant_*.txt")


def sun(source: Source) -> SourceRows:
    """SUN397: Training_01.txt and Testing_01.txt, lines of "/a/abbey/sun.jpg"; order: ClassName.txt."""
    home = source.home if (source.home / "ClassName.txt").is_file() else source.images
    keys = tuple(line.strip().lstrip("/") for line in _names(source, "ClassName.txt", home))
    for key in keys:
        require_inside("ClassName.txt", key)
    if not (home / "Training_01.txt").is_file():
        rows, ignored = class_images(source.images, "", keys)
        return SourceRows(keys, source.names, {"all": tuple(rows)}, notes=ignored_note(ignored))
    labels, splits = {key: label for label, key in enumerate(keys)}, {}
    files = {"trainval": "Training_01.txt", "test": "Testing_01.txt"}
    for part, lines in _lists(source, files, home).items():
        paths = [line.strip().lstrip("/") for line in lines]
        splits[part] = tuple(Row(path, _label_of(source, labels, path.rpartition("/")[0])) for path in paths)
    return SourceRows(keys, source.names, splits, "Testing_01.txt")


def ucf(source: Source) -> SourceRows:
    """UCF101: ucfTrainTestlist/trainlist01.txt and testlist01.txt, lines of "ApplyLipstick/v_....avi"."""
    if not (source.home / "ucfTrainTestlist").is_dir():
        return class_folders(source)
    classes = (line.split() for line in _names(source, "ucfTrainTestlist/classInd.txt"))
    labels = {" ".join(words[1:]): _label(source, words, 1) for words in classes}
    files = {"trainval": "ucfTrainTestlist/trainlist01.txt", "test": "ucfTrainTestlist/testlist01.txt"}
    splits = {}
    for part, lines in _lists(source, files).items():
        rows = []
        for line in lines:
            action, _, video = line.split()[0].partition("/")
            folder = "_".join(re.findall("[A-Z][^A-Z]*", action))
            rows.append(Row(f"{folder}/{video.removesuffix('.avi')}.jpg", _label_of(source, labels, action)))
        splits[part] = tuple(rows)
    return SourceRows(tuple(labels), source.names, splits, "testlist01.txt")


def flowers(source: Source) -> SourceRows:
    """OxfordFlowers: imagelabels.mat has the label, from 1, of each image in turn."""

    def numbers(labels: Any) -> list[int]:
        return [_label(source, [label], 1) for label in labels.tolist()]

    labels = _matlab(source, "imagelabels.mat", "labels", numbers)
    rows = [Row(f"image_{number:05}.jpg", label) for number, label in enumerate(labels, start=1)]
    return SourceRows(source.names, source.names, {"all": tuple(rows)})


def cars(source: Source) -> SourceRows:
    """StanfordCars: devkit/cars_train_annos.mat and cars_test_annos_withlabels.mat."""
    splits = {}
    for part, folder, file in (
        ("trainval", "cars_train", "devkit/cars_train_annos.mat"),
        ("test", "cars_test", "cars_test_annos_withlabels.mat"),
    ):

        def records(annotations: Any, file: str = file) -> list[tuple[str, int]]:
            other_form = DataError(
                f"{source.name}: the annotations of {file} are not records of an fname and a class."
            )
            try:
                rows = [(row["fname"].item(), row["class"].item()) for row in annotations]
            except (IndexError, KeyError, TypeError, ValueError, AttributeError) as error:
                raise other_form from error
            if not all(isinstance(name, str) for name, _ in rows):
                raise other_form
            return [(name, _label(source, [label], 1)) for name, label in rows]

        rows = _matlab(source, file, "annotations", records)
        splits[part] = tuple(Row(f"{folder}/{name}", label) for name, label in rows)
    return SourceRows(source.names, source.names, splits, "cars_test_annos_withlabels.mat")


READERS: Mapping[str, Callable[[Source], SourceRows]] = {
    reader.__name__.replace("_", "-"): reader
    for reader in (
        class_folders, wnid_folders, wnid_test_folders, numbered_folders, pets, aircraft, sun, ucf, flowers,
        cars,
    )
}  # fmt: skip
"""By the name in benchmarks.json."""


def _wnids(source: Source) -> tuple[str, ...]:
    assert source.wnids is not None
    return source.wnids


def _wnid_names(source: Source) -> tuple[str, ...]:
    """Names from CoOp's classnames.txt if the folder has one, else the package's."""
    file = source.home / CLASSNAMES
    if not file.is_file():
        return source.names
    return tuple(match_names(_wnids(source), read_names(file), str(file), numbered=True))


def _wnid_rows(source: Source, part: str) -> tuple[tuple[Row, ...], list[str]]:
    _require_folders(source, source.images / part, _wnids(source))
    rows, ignored = class_images(source.images, part, _wnids(source))
    return tuple(rows), ignored


def _require_folders(source: Source, folder: Path, keys: tuple[str, ...] | list[str]) -> None:
    existing = {*_subfolders(source, folder)}
    if missing := [key for key in keys if key not in existing]:
        raise DataError(
            f"{folder} lacks {len(missing)} of the {len(keys)} folders of {source.name}; "
            f"the first is {missing[0]}."
        )


def _subfolders(source: Source, folder: Path) -> list[str]:
    if not folder.is_dir():
        raise DataError(
            f"{source.name} has no folder {folder}. `dear data get {source.name}` says what to do."
        )
    return subfolders(folder)


def _lines(source: Source, file: str, home: Path | None = None) -> list[str]:
    home = home or source.home
    path = home / file
    try:
        _require_no_links(path, home)
        lines = read_lines(path)
    except ReadingError as error:
        raise DataError(
            f"{source.name} has no split list in {source.home}, and {path} cannot be read ({error.reason}). "
            f"`dear data get {source.name}` says what to do."
        ) from error
    return [line for line in lines if line.strip() and not line.startswith("#")]


def _names(source: Source, file: str, home: Path | None = None) -> list[str]:
    """The lines of a list of classes."""
    names = _lines(source, file, home)
    at_most("classes", len(names), f"{source.name}, {file}")
    return names


def _lists(source: Source, files: Mapping[str, str], home: Path | None = None) -> dict[str, list[str]]:
    """The lines of the lists of images by part. Raises LimitError before a row is made of any: it takes
    hundreds of bytes.
    """
    lists, count = dict[str, list[str]](), 0
    for part, file in files.items():
        lists[part] = _lines(source, file, home)
        count += len(lists[part])
        at_most("table_rows", count, f"{source.name}, {file}")
    return lists


def _require_no_links(path: Path, home: Path) -> None:
    """Raise ReadingError for a list that leads to a file elsewhere, which a message would quote. The folder
    itself may be a link.
    """
    if has_links(path, home):
        raise ReadingError(path, "it is a link or behind one: put the file itself there")


def _label_of(source: Source, labels: Mapping[str, int], name: str) -> int:
    if name not in labels or labels[name] >= len(source.names):
        raise DataError(f"{source.name} has no class {shown(name)}.")
    return labels[name]


def _label(source: Source, number: list[Any], first: int) -> int:
    """A label counted from `first`, converted to count from 0."""
    try:
        label = int(number[0]) - first
        if not isinstance(number[0], str) and number[0] != label + first:
            raise ValueError("it is a fraction")
    except (IndexError, OverflowError, TypeError, ValueError) as error:
        raise DataError(f"{source.name}: {shown(number)} is not a label.") from error
    if not 0 <= label < len(source.names):
        raise DataError(
            f"{source.name}: label {shown(label + first)} is out of range, {first} to {len(source.names)}."
        )
    return label


def _matlab(source: Source, file: str, variable: str, select: Callable[[Any], list[Entry]]) -> list[Entry]:
    """What ``select`` makes of a variable of a MATLAB file, a vector. It runs where the file is read."""
    try:
        from scipy.io import loadmat
    except ImportError as error:
        raise DataError(
            f"{source.name} has no split list in {source.home}, and its own labels are MATLAB files: "
            "`pip install scipy` to read them, or download the split list."
        ) from error
    path = source.home / file

    def entries() -> list[Entry]:
        try:
            _require_no_links(path, source.home)
            content = io.BytesIO(read_bytes(path, "text_bytes"))
            values = loadmat(content, variable_names=[variable])[variable].flatten()
            at_most("table_rows", len(values), path)
        except (LimitError, MemoryError):
            raise
        except Exception as error:  # scipy has no common exception class for damaged files
            raise DataError(
                f"{source.name} has no split list in {source.home}, and {path} cannot be read "
                f"({first_line(error)}). `dear data get {source.name}` says what to do."
            ) from error
        return select(values)

    # scipy makes arrays of what a file claims, of any size.
    return isolated(entries, path, seconds=MATLAB_SECONDS, memory=MATLAB_BYTES)
