"""Hugging Face data sets, by name or saved in a folder: their images are unpacked into the cache once."""

import os
import re
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from dear.data.images.raster import kind_of
from dear.data.settings import DataSettings
from dear.data.sources.archive import stamp
from dear.data.sources.folder import SPLITS
from dear.data.sources.huggingface_files import (
    CellReader,
    arrow_files,
    labels_of,
    require_usable,
    require_valid,
    saved_tables,
)
from dear.data.sources.listing import PARTS, Listing, Row, require_distinct
from dear.data.sources.splits import Split, make_split
from dear.errors import DataError, OutputError, first_line, installation, listing
from dear.limits import LimitError, at_most

PREFIX = "hf:"


def is_saved(folder: Path) -> bool:
    """Whether a folder was written by save_to_disk of the library datasets."""
    return (folder / "dataset_dict.json").is_file() or (
        (folder / "state.json").is_file() and (folder / "dataset_info.json").is_file()
    )


def read_huggingface(name: str, settings: DataSettings) -> Listing:
    """Read NAME, NAME:CONFIGURATION or a folder written by save_to_disk, without "hf:".

    The image files are unpacked unchanged into the cache folder, unless they already were. Raises DataError
    if it cannot be loaded, has no images or no classes; OutputError if the cache cannot be written.
    """
    return read_tables(name, _loaded(name), settings)[0]


def read_tables(
    name: str, parts: Mapping[str, Any], settings: DataSettings, *, unpack: bool = True
) -> tuple[Listing, str]:
    """The lists of a data set's tables, by the names of its splits, and the column of its images. Unless they
    are unpacked, the path of an image is that of its row: train/000000017. Raises as `read_huggingface`.
    """
    features = next(iter(parts.values())).features
    image, label = _columns(name, features, settings.label)
    require_usable(name, parts, image, label)
    if unpack:
        require_valid(name, parts, [image, label])
    labels = {part: labels_of(f"{name}, {part}", table, label) for part, table in parts.items()}
    names = _names(features[label], [*chain.from_iterable(labels.values())])
    require_distinct(name, names, names)
    folder = _unpacked(name, parts, image, settings.cache_folder()) if unpack else Path(name)
    numbered = hasattr(features[label], "names")
    numbers: dict[Any, int] = {number if numbered else key: number for number, key in enumerate(names)}
    rows_by_part = dict[str, tuple[Row, ...]]()
    for part, part_labels in labels.items():
        numbered_rows = [f"{row:09}" for row in range(len(part_labels))]
        files = sorted(os.listdir(folder / part)) if unpack else numbered_rows
        keys = [key if numbered else str(key) for key in part_labels]
        rows = [
            Row(f"{part}/{file}", numbers[key])
            for file, key in zip(files, keys, strict=True)
            if key in numbers
        ]
        if rows:  # some test splits have no labels but -1
            rows_by_part[part] = tuple(rows)
    short_name = re.sub(r"[^\w.-]+", "-", Path(name).name).strip("-")
    split = _split(rows_by_part, settings, names, short_name)
    note = f"its columns {image} and {label} are read"
    notes = (*split.notes, note + (f"; its images are unpacked in {folder}" if unpack else ""))
    listed = Listing(short_name, folder, tuple(names), tuple(names), split.splits, split.origin, notes=notes)
    return listed, image


def _loaded(name: str) -> dict[str, Any]:
    """The tables of a data set by the names of its splits."""
    try:
        import datasets  # noqa: F401
    except ImportError as error:
        raise DataError(f"{PREFIX}{name} needs the library datasets: {installation('datasets')}.") from error
    folder = Path(name).expanduser()
    try:
        if folder.is_dir():
            if not is_saved(folder):
                raise DataError(f"{folder} was not written by save_to_disk: give it without {PREFIX}")
            loaded: Any = saved_tables(folder)
        else:
            from dear.data.sources.huggingface_card import fetched_tables

            loaded = fetched_tables(*name.partition(":")[::2])
        parts = dict(loaded) if isinstance(loaded, dict) else {"all": loaded}
        parts = {part: table.with_format(None) for part, table in parts.items()}  # with all columns
        at_most("table_rows", sum(map(len, parts.values())), name)
    except (DataError, LimitError):
        raise
    except Exception as error:  # the hub's, the disk's and the format's errors have no common class
        raise DataError(
            f"cannot load the Hugging Face data set {name}: {first_line(error).rstrip('.')}. Check the name "
            "and the connection; without one, save it elsewhere with save_to_disk and give that folder."
        ) from error
    if odd := next((part for part in parts if not re.fullmatch(r"\w[\w.-]*", part)), None):
        raise DataError(f"the Hugging Face data set {name} has a split called {odd!r}.")
    if not parts or not all(map(len, parts.values())):
        raise DataError(f"the Hugging Face data set {name} is empty.")
    return parts


def _columns(name: str, features: Mapping[str, Any], label: str | None) -> tuple[str, str]:
    """The columns of the images and of the classes."""
    kinds = {column: type(feature).__name__ for column, feature in features.items()}
    images = [column for column, kind in kinds.items() if kind == "Image"]
    if not images:
        raise DataError(f"{name} has no column of images: it has {listing([*kinds])}.")
    classes = [column for column, kind in kinds.items() if kind == "ClassLabel"]
    plain = [column for column in ("label", "labels", "class") if column in kinds]
    labels = [label] if label is not None else classes or plain[:1]
    if len(labels) != 1 or labels[0] not in kinds:
        which = f"the columns {listing(labels)}" if len(labels) > 1 else "no such column"
        raise DataError(
            f"{name} has {which} for the classes: name one of {listing([*kinds])} with --dataset.label."
        )
    return images[0], labels[0]


def _names(feature: Any, labels: Sequence[Any]) -> list[str]:
    """Class names in label order: those of the feature, else the labels themselves, sorted."""
    return [*feature.names] if hasattr(feature, "names") else sorted({str(label) for label in labels})


def _split(
    rows_by_part: dict[str, tuple[Row, ...]], settings: DataSettings, names: Sequence[str], name: str
) -> Split:
    """The split of a data set under our names. Raises DataError if there are no images to test on."""
    splits = {SPLITS[part.lower()]: rows for part, rows in rows_by_part.items() if part.lower() in SPLITS}
    ignored = [part for part in rows_by_part if part.lower() not in SPLITS]
    notes: tuple[str, ...] = ()
    if "test" not in splits and {"train", "val"} <= splits.keys():
        splits["test"] = splits.pop("val")
        notes = ("it has no test split with labels: its validation split is used for testing",)
    if (not splits and len(ignored) == 1) or splits.keys() == {"train"}:
        rows = splits.get("train") or rows_by_part[ignored[0]]
        return make_split(rows, settings, names, name)
    if "test" not in splits:
        raise DataError(f"{name} has the splits {listing([*rows_by_part])}: none is to test on.")
    if ignored:
        notes = (*notes, f"its splits {listing(ignored)} are left out")
    if "train" not in splits:
        notes = (*notes, "it has no images to train on: it can only be tested on")
    ordered = {part: splits.get(part, ()) for part in PARTS if part in {*splits, "train"}}
    return Split(ordered, "its splits", notes)


def _unpacked(name: str, parts: Mapping[str, Any], image: str, cache: Path) -> Path:
    """The folder of the image files, one folder a split, in the order of the rows.

    It is identified by the Arrow files on the disk: what the data set says of itself may be copied from
    another, whose images would then be taken for its own.
    """
    import datasets

    from dear.data.dataset import fingerprint  # loads torch

    facts = [str(fact) for part, table in parts.items() for fact in (part, len(table))]
    facts += [fact for file in arrow_files(name, parts) for fact in stamp(file)]
    plain_name = re.sub(r"[^A-Za-z0-9]+", "-", name)[-60:]
    target = cache / "huggingface" / f"{plain_name}-{fingerprint(image, *facts)}"
    if target.is_dir():
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        cells = CellReader(name, parts)
        partial = Path(tempfile.mkdtemp(dir=target.parent, suffix=".part"))
        try:
            for part, table in parts.items():
                (partial / part).mkdir()
                undecoded = table.select_columns([image]).cast_column(image, datasets.Image(decode=False))
                for number, row in enumerate(undecoded):
                    content = cells.read(row[image], part, number)
                    kind = kind_of(content)
                    suffix = ".jpg" if kind == "JPEG" else f".{(kind or 'bin').lower()}"
                    (partial / part / f"{number:09}{suffix}").write_bytes(content)
            partial.rename(target)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    except OSError as error:
        if not target.is_dir():  # otherwise another process has unpacked it meanwhile
            raise OutputError(f"cannot unpack into {cache}: {error}. Choose another cache folder.") from error
    return target
