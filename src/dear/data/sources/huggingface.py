"""Hugging Face data sets, by name or saved in a folder: their images are unpacked into the cache once."""

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any
from uuid import uuid4

from dear.data.images.raster import kind_of
from dear.data.settings import DataSettings
from dear.data.sources.archive import SMALLEST_FILE, require_modest, stamp
from dear.data.sources.arrow import LABEL_TYPE, ArrowFiles, Column, Table
from dear.data.sources.listing import PARTS, Listing, Row, first_few, require_keys, sort_names
from dear.data.sources.split_names import names_of_splits, split_of
from dear.data.sources.splits import Split, make_split
from dear.errors import DataError, OutputError, compose, installation, listing
from dear.limits import at_most, limit, variable
from dear.reading.files import expanded, has_links, opened, size_on_disk
from dear.reading.isolated import isolated
from dear.reading.plain import read_json
from dear.reading.typed import typed
from dear.writing import temporary_folder

PREFIX = "hf:"
SPLITS_LIST, STATE, INFO = "dataset_dict.json", "state.json", "dataset_info.json"
LABELS_AT_ONCE, IMAGES_AT_ONCE = 1000, 1  # a row of a Parquet file may repeat a large value
LIKE_THE_HUBS = re.compile(r"\w[\w.-]*/\w[\w.-]*", re.ASCII)
"""The name of a repository, or of a folder in the current one."""
OLDEST = 26  # version of pyarrow
SECONDS, BYTES_A_SECOND = 20, 500_000
"""Seconds of the processor that a data set may take, and bytes for each further one: 60,000 images of 16 MB
take 7, as many of 24 kB with 500 distinct ones 10, and 2,000 of 200 MB take 3.
"""
MAX_PATH = 1000  # characters of a path


def is_saved(folder: Path) -> bool:
    """Whether a folder was written by save_to_disk of the library datasets."""
    return (folder / SPLITS_LIST).is_file() or ((folder / STATE).is_file() and (folder / INFO).is_file())


def read_huggingface(name: str, settings: DataSettings) -> Listing:
    """Read NAME, NAME:CONFIGURATION, a folder with the Parquet files of one, or a folder written by
    save_to_disk, without "hf:".

    The image files are unpacked unchanged into the cache folder, unless they already were. Raises DataError
    if it cannot be loaded, has no images or no classes; OutputError if the cache cannot be written.
    """
    from dear.data.dataset import fingerprint

    try:
        import pyarrow.parquet
    except ImportError as error:
        raise DataError(f"{PREFIX}{name} needs pyarrow: {installation('datasets')}.") from error
    if int(pyarrow.__version__.partition(".")[0]) < OLDEST:
        raise DataError(
            f"{PREFIX}{name} needs pyarrow {OLDEST} or newer, not {pyarrow.__version__}, which a schema of "
            f"many levels ends: {installation('datasets')}."
        )
    files, is_partial = _files(name, settings.cache_folder())
    notes = ("the hub has converted only a part of its images",) if is_partial else ()
    first = name.partition(":")[0]
    if LIKE_THE_HUBS.fullmatch(first) and os.path.isdir(first):
        notes = (*notes, f"it is the folder {os.path.abspath(first)}, no data set of the hub")
    cache = settings.cache_folder() / "huggingface"

    def unpack(image: str) -> Path:
        facts = [str(fact) for part, table in tables.items() for fact in (part, len(table))]
        # Known by its files on the disk: what a data set says of itself may be copied from another.
        facts += [fact for table in tables.values() for file in table.files for fact in stamp(file)]
        plain_name = re.sub(r"[^A-Za-z0-9]+", "-", name)[-60:]
        target = cache / f"{plain_name}-{fingerprint(image, *facts)}"
        _unpack(name, tables, image, target, unfinished)
        return target

    def read() -> Listing:
        tables.update({part: ArrowFiles(paths) for part, paths in files.items()})
        return list_tables(name, tables, settings, unpack, notes)[0]

    tables = dict[str, ArrowFiles]()
    seconds = SECONDS + _size(chain.from_iterable(files.values())) // BYTES_A_SECOND
    with temporary_folder(cache / f"{uuid4().hex}.part") as unfinished:
        remedy = f"Set {variable('unpacking_bytes')} to allow more."
        return isolated(read, name, seconds=seconds, memory=limit("unpacking_bytes"), remedy=remedy)


def list_tables(
    name: str,
    tables: Mapping[str, Table],
    settings: DataSettings,
    unpack: Callable[[str], Path] | None = None,
    notes: Sequence[str] = (),
) -> tuple[Listing, str]:
    """The lists of a data set's tables, by the names of its splits, and the column of its images.

    ``unpack`` writes the images of that column: a folder for each split, a file for each row. Without it, the
    path of an image is that of its row: train/000000017. Raises as `read_huggingface`.
    """
    if odd := next((part for part in tables if not re.fullmatch(r"\w[\w.-]*", part)), None):
        raise DataError(f"the Hugging Face data set {name} has a split called {odd[:100]!r}.")
    if not tables or not all(map(len, tables.values())):
        raise DataError(f"the Hugging Face data set {name} is empty.")
    at_most("table_rows", sum(map(len, tables.values())), name)
    columns = next(iter(tables.values())).columns
    image, label = _columns(name, columns, settings.label)
    at_most("record_name", max(len(image), len(label)), f"a column of {name}")
    for part, table in tables.items():
        if (table.columns.get(image), table.columns.get(label)) != (columns[image], columns[label]):
            raise DataError(f"{name}: the split {part} has no columns {image} and {label} of the same types.")
    labels = {part: _labels(f"{name}, {part}", table, label) for part, table in tables.items()}
    numbered = columns[label].kind == "classes"
    names = [*map(compose, columns[label].names)]
    if not numbered:
        texts = {compose(str(value)) for value in chain.from_iterable(labels.values()) if value is not None}
        names = sort_names(texts)
    require_keys(name, names)
    numbers: dict[Any, int] = {number if numbered else key: number for number, key in enumerate(names)}
    folder = Path(name) if unpack is None else unpack(image)
    rows_by_part, unlabelled = dict[str, tuple[Row, ...]](), 0
    for part, values in labels.items():
        paths = [f"{row:09}" for row in range(len(values))]
        files = paths if unpack is None else _unpacked(folder / part, paths)
        rows = [
            Row(f"{part}/{file}", numbers[value if numbered else compose(str(value))])
            for file, value in zip(files, values, strict=True)
            if value is not None
        ]
        unlabelled += len(values) - len(rows)
        if rows:  # some test splits have no labels
            rows_by_part[part] = tuple(rows)
    if not rows_by_part:
        raise DataError(f"{name}: no image has a label in the column {label}.")
    if unlabelled:
        notes = (*notes, f"{unlabelled} of its images have no label and are left out")
    if 0 < settings.test_share < 1 and not _has_test(rows_by_part):
        names, rows_by_part, lacking = _with_images(names, rows_by_part)  # a split needs some of each class
        if lacking:
            notes = (*notes, f"{len(lacking)} classes without images are left out: {first_few(lacking)}")
    short_name = re.sub(r"[^\w.-]+", "-", Path(os.path.abspath(name)).name).strip("-") or "data"
    split = _split(rows_by_part, settings, names, short_name)
    note = f"its columns {image} and {label} are read"
    notes = (
        *notes,
        *split.notes,
        note + ("" if unpack is None else f"; its images are unpacked in {folder}"),
    )
    classes = tuple(names)
    listed = Listing(
        short_name, folder, classes, classes, split.splits, split.origin, notes=notes, numbered=numbered
    )
    return listed, image


def _unpacked(folder: Path, rows: Sequence[str]) -> list[str]:
    """The unpacked files of these rows. Raises DataError if others are there."""
    try:
        files = sorted(os.listdir(folder))
    except OSError:
        files = []
    if [file.partition(".")[0] for file in files] != list(rows):
        raise DataError(
            f"{folder} holds other files than were unpacked: remove {folder.parent}, which is made again."
        )
    return files


def _files(name: str, cache: Path) -> tuple[Mapping[str, Sequence[Path]], bool]:
    """The files of a data set by the names of its splits, and whether they are but a part of it."""
    from dear.data.sources.huggingface_hub import fetched, local_files

    folder = expanded(name)
    if os.path.isdir(folder):
        return (saved_files(folder), False) if is_saved(folder) else local_files(folder, "")
    first, _, configuration = name.partition(":")
    if os.path.isdir(folder := expanded(first)):
        return local_files(folder, configuration)
    return fetched(first, configuration, cache)


def saved_files(folder: Path) -> dict[str, list[Path]]:
    """The Arrow files of a folder of save_to_disk by split, "all" without splits. What else its lists say is
    not read: the columns are described in the Arrow files.

    Raises DataError for a folder with both kinds of lists, for malformed lists, and for what is not a regular
    file below the folder or is listed twice.
    """
    folder = Path(os.path.abspath(folder))
    splits_list = folder / SPLITS_LIST
    if not splits_list.is_file():
        return {"all": _saved_files(folder, folder)}
    if extra := [name for name in (STATE, INFO) if (folder / name).exists()]:
        raise DataError(
            f"{folder} has {SPLITS_LIST}, of a data set with splits, and {extra[0]}, of one without: remove "
            "what does not belong to it, or save it again into an empty folder."
        )
    content = typed(read_json(splits_list), dict[str, Any], splits_list)
    names = typed(content.get("splits"), list[str], splits_list, "splits")
    parts = _distinct(folder, names, f"{splits_list}, splits")
    return {name: _saved_files(folder, part) for name, part in zip(names, parts, strict=True)}


def _saved_files(folder: Path, part: Path) -> list[Path]:
    path = file_below(folder, str(part / STATE), str(part / STATE)[:500])
    state = typed(read_json(path), dict[str, Any], part / STATE)
    listed = typed(state.get("_data_files"), list[dict[str, Any]], part / STATE, "_data_files")
    names = [typed(file.get("filename"), str, part / STATE, "_data_files.filename") for file in listed]
    files = _distinct(folder, [str(part / name) for name in names], str(part / STATE))
    if not files:
        raise DataError(f"{part / STATE} lists no files.")
    for file in files:
        with opened(file):  # refuses pipes and devices
            pass
    return files


def _distinct(folder: Path, names: Sequence[str], where: str) -> list[Path]:
    """The paths that lists name below the folder."""
    at_most("dataset_files", len(names), where)
    paths = dict[Path, None]()
    for name in names:
        path = file_below(folder, name, where)
        if path in paths:
            raise DataError(f"{where}: {name[-200:]!r} is listed twice: save the data set again.")
        paths[path] = None
    return [*paths]


def file_below(folder: Path, name: str, where: str) -> Path:
    """The path of a file that a data set names. Raises DataError outside its folder, or behind a link;
    LimitError for too many levels.
    """
    path = folder / name
    at_most("folder_depth", len(path.parts) - len(folder.parts), where)
    usable = "\0" not in name and len(name) <= MAX_PATH and ".." not in path.parts
    if usable and path.is_relative_to(folder) and not has_links(path, folder):
        return path
    raise DataError(
        f"{where}: {name[:200]!r} is not a file of the data set. A data set may name only files of its "
        "own; save one of yours with save_to_disk, which copies its images into it."
    )


def _columns(name: str, columns: Mapping[str, Column], label: str | None) -> tuple[str, str]:
    """The columns of the images and of the classes. Raises DataError."""
    images = [column for column, facts in columns.items() if facts.kind == "images"]
    if not images:
        raise DataError(f"{name} has no column of images: it has {listing([*columns])}.")
    classes = [column for column, facts in columns.items() if facts.kind == "classes"]
    plain = [column for column in ("label", "labels", "class") if column in columns]
    labels = [label] if label is not None else classes or plain[:1]
    if len(labels) != 1 or labels[0] not in columns:
        which = f"the columns {listing(labels)}" if len(labels) > 1 else "no such column"
        raise DataError(
            f"{name} has {which} for the classes: name one of {listing([*columns])} with --dataset.label."
        )
    facts = columns[labels[0]]
    if facts.kind == "images" or not LABEL_TYPE.fullmatch(facts.dtype):
        raise DataError(
            f"{name}: the column {labels[0]} holds {facts.dtype[:100]}, not texts, numbers or booleans."
        )
    return images[0], labels[0]


def _labels(where: str, table: Table, column: str) -> list[Any]:
    """The labels of the rows, equal ones as one object, None where it is withheld: for the class -1, or if
    all rows of a split have -1, null or NaN.

    Raises DataError for another row without a label or with a number that has no name, LimitError for too
    many or too long labels.
    """
    labels, distinct = list[Any](), dict[Any, Any]()
    numbered, count = table.columns[column].kind == "classes", len(table.columns[column].names)
    first_missing: int | None = None
    for row, value in enumerate(chain.from_iterable(table.values(column, LABELS_AT_ONCE)), start=1):
        label = 0.0 if isinstance(value, float) and value == 0 else value  # not -0.0
        if label is None or label != label:  # NaN
            first_missing = first_missing or row
            labels.append(None)
            continue
        if label not in distinct:
            if numbered and not (isinstance(label, int) and -1 <= label < count):
                raise DataError(
                    f"{where}, row {row} has the label {str(label)[:100]} in the column {column}, which has "
                    f"{count} names, counted from 0: correct it."
                )
            at_most("classes", len(distinct) + 1, where)
            at_most("class_name", len(str(label)), where)
        labels.append(distinct.setdefault(label, label))
    if first_missing and distinct:
        raise DataError(
            f"{where}, row {first_missing} has no label in the column {column}: remove it or label it."
        )
    withheld = numbered or distinct.keys() == {-1}  # plain numbers may have -1 among others
    return [None if label == -1 else label for label in labels] if withheld else labels


def _has_test(parts: Iterable[str]) -> bool:
    splits = {*map(split_of, parts)}
    return "test" in splits or {"train", "val"} <= splits


def _with_images(
    names: Sequence[str], rows_by_part: Mapping[str, tuple[Row, ...]]
) -> tuple[list[str], dict[str, tuple[Row, ...]], list[str]]:
    """The classes that have images, the rows with their numbers among these, and the other classes."""
    used = {row.label for row in chain.from_iterable(rows_by_part.values())}
    numbers = {label: number for number, label in enumerate(sorted(used))}
    renumbered = {
        part: tuple(Row(row.path, numbers[row.label]) for row in rows) for part, rows in rows_by_part.items()
    }
    lacking = [name for label, name in enumerate(names) if label not in used]
    return [names[label] for label in numbers], renumbered, lacking


def _split(
    rows_by_part: dict[str, tuple[Row, ...]], settings: DataSettings, names: Sequence[str], name: str
) -> Split:
    """The split of a data set under our names. Raises DataError if there are no images to test on."""
    part_of = names_of_splits([*rows_by_part], name)
    splits = {kind: rows_by_part[part] for kind, part in part_of.items()}
    ignored = [part for part in rows_by_part if part not in part_of.values()]
    notes: tuple[str, ...] = ()
    if "test" not in splits and {"train", "val"} <= splits.keys():
        splits["test"] = splits.pop("val")
        notes = ("it has no test split with labels: its validation split is used for testing",)
    undivided = splits.get("train") if splits.keys() == {"train"} else None
    if not splits and len(ignored) == 1:
        undivided = rows_by_part[ignored.pop()]
    if ignored:
        notes = (*notes, f"its splits {listing(ignored)} are left out")
    if undivided is not None:
        split = make_split(undivided, settings, names, name)
        return split._replace(notes=(*notes, *split.notes))
    if "test" not in splits:
        raise DataError(f"{name} has the splits {listing([*rows_by_part])}: none is to test on.")
    if "train" not in splits:
        notes = (*notes, "it has no images to train on: it can only be tested on")
    ordered = {part: splits.get(part, ()) for part in PARTS if part in {*splits, "train"}}
    return Split(ordered, "its splits", notes)


def _size(files: Iterable[Path]) -> int:
    """The bytes of files on the disk: those of several names, such as links, once."""
    sizes = dict[tuple[int, int], int]()
    for file in files:
        size, facts = size_on_disk(file), file.stat()
        sizes[facts.st_dev, facts.st_ino] = size
    return sum(sizes.values())


def _unpack(name: str, tables: Mapping[str, ArrowFiles], image: str, target: Path, unfinished: Path) -> None:
    """Write the image files into a folder for each split, in the order of the rows, unless the target exists.

    A row without an image becomes an empty file. Raises DataError if no row has one, LimitError for too much
    data: a file may hold one value for many rows, so that a small data set would fill the disk.
    """
    if target.is_dir():
        return
    size = _size(file for table in tables.values() for file in table.files)
    unpacked = filled = 0
    try:
        unfinished.mkdir(parents=True)
        for part, table in tables.items():
            (unfinished / part).mkdir()
            cells = chain.from_iterable(table.values(image, IMAGES_AT_ONCE))
            for number, cell in enumerate(cells):
                content = cell or b""
                filled += bool(content)
                at_most("image_bytes", len(content), f"{name}, {part}, row {number + 1}")
                unpacked += max(SMALLEST_FILE, len(content))
                require_modest(name, unpacked, size)
                kind = kind_of(content)
                suffix = ".jpg" if kind == "JPEG" else f".{(kind or 'bin').lower()}"
                (unfinished / part / f"{number:09}{suffix}").write_bytes(content)
        if not filled:
            raise DataError(
                f"{name} holds no image files, only their names at most: save it with save_to_disk of a "
                "current library datasets, which copies the images into it."
            )
        unfinished.rename(target)
    except OSError as error:
        if not target.is_dir():  # otherwise another process has unpacked it meanwhile
            raise OutputError(
                f"cannot unpack into {target.parent}: {error}. Choose another cache folder."
            ) from error
