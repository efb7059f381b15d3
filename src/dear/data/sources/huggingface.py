"""Hugging Face data sets, by name or saved in a folder, through their library datasets: it runs no code of a
data set. Their images are unpacked into the cache once.
"""

import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Any

from dear.data.images.decode import open_image
from dear.data.settings import DataSettings
from dear.data.sources.archive import cached_folder
from dear.data.sources.class_names import sort_names
from dear.data.sources.listing import PARTS, UNDIVIDED, Listing, Row
from dear.data.sources.splits import Split, names_of_splits
from dear.errors import DataError, installation
from dear.reading.files import expanded
from dear.text import compose, fingerprint, list_names

PREFIX = "hf:"
CONVERTED = "refs/convert/parquet"
"""The branch that the hub keeps of its conversions (huggingface.co/docs/dataset-viewer/parquet)."""
LABEL_TYPE = re.compile(r"(large_)?string|bool|u?int(8|16|32|64)|float(32|64)")
Tables = Mapping[str, Any]
"""Tables of the library, datasets.Dataset, by the names of their splits."""


def is_saved(folder: Path) -> bool:
    """Whether a folder was written by save_to_disk of the library datasets."""
    lists = [(folder / name).is_file() for name in ("dataset_dict.json", "state.json", "dataset_info.json")]
    return lists[0] or all(lists[1:])


def read_huggingface(name: str, settings: DataSettings) -> Listing:
    """Read NAME, NAME:CONFIGURATION, a folder with the files of one, or a folder written by save_to_disk,
    without "hf:".

    The image files are unpacked unchanged into the cache folder, unless they already were. Raises DataError
    if it cannot be loaded, has no images or no classes; OutputError if the cache cannot be written.
    """
    return list_tables(name, _load(name), settings, settings.cache_folder() / "huggingface")[0]


def _load(name: str) -> Tables:
    """The tables of a data set by the names of their splits, "all" without splits."""
    try:
        import datasets
    except ImportError as error:
        raise DataError(f"{PREFIX}{name} needs the library datasets: {installation('datasets')}.") from error
    is_folder = os.path.isdir(expanded(name))  # whose name may have a colon
    first, _, configuration = (name, "", "") if is_folder else name.partition(":")
    if os.path.isdir(folder := expanded(first)):
        first, is_folder = str(folder), True
    try:
        try:
            if is_folder and is_saved(folder):
                loaded = datasets.load_from_disk(first)
            else:
                loaded = datasets.load_dataset(first, configuration or None)
        except RuntimeError as error:  # it has a script, which no version of the library runs any more
            if is_folder or "script" not in str(error):
                raise
            loaded = datasets.load_dataset(first, revision=CONVERTED, data_dir=configuration or None)
    except Exception as error:  # the network, the hub, the disk and Arrow share no exception class
        reason = " ".join(str(error).split())[:300].rstrip(".")
        raise DataError(
            f"cannot load the Hugging Face data set {name}: {reason}. Check the name and the connection; "
            "without one, give a folder written by save_to_disk."
        ) from error
    return loaded if isinstance(loaded, Mapping) else {"all": loaded}


def list_tables(
    name: str, tables: Tables, settings: DataSettings, cache: Path | None = None
) -> tuple[Listing, str]:
    """The lists of a data set's tables, and the column of its images, which are unpacked into a folder in
    ``cache``. Without that, the path of an image is that of its row: train/000000017. Raises as
    `read_huggingface`.
    """
    if odd := [part for part in tables if not re.fullmatch(r"\w[\w.-]*", part)]:  # it becomes a folder
        raise DataError(f"the Hugging Face data set {name} has a split called {odd[0]!r:.80}.")
    if not tables or not all(map(len, tables.values())):
        raise DataError(f"the Hugging Face data set {name} is empty.")
    features = next(iter(tables.values())).features
    image, label = _columns(name, features, settings.named_columns.get("label"))
    names = _names(features[label])  # each split may have them in an order of its own
    kinds = {part: table.features.get(label) for part, table in tables.items()}
    alike = {part: kind == features[label] or (_names(kind) and names) for part, kind in kinds.items()}
    if odd := [part for part, is_alike in alike.items() if not is_alike]:
        raise DataError(f"{name}: the split {odd[0]} has no column {label} of the same type.")
    labels = {
        part: _labels(f"{name}, {part}", table, label, _names(kinds[part])) for part, table in tables.items()
    }
    keys = [*dict.fromkeys(compose(each) for kind in kinds.values() for each in _names(kind) or ())]
    if names is None:
        keys = sort_names({value for value in chain.from_iterable(labels.values()) if value is not None})
    numbers = {key: number for number, key in enumerate(keys)}
    folder = Path(name) if cache is None else _unpack(name, tables, image, cache)
    rows_by_part = dict[str, tuple[Row, ...]]()
    for part, values in labels.items():
        files = [f"{row:09}" for row in range(len(values))]
        files = files if cache is None else sorted(os.listdir(folder / part))
        if len(files) != len(values):
            raise DataError(f"{folder / part} lacks files: remove {folder}, which is made again.")
        pairs = zip(files, values, strict=True)
        rows = [Row(f"{part}/{file}", numbers[key]) for file, key in pairs if key is not None]
        if rows:  # some test splits have no labels
            rows_by_part[part] = tuple(rows)
    if not rows_by_part:
        raise DataError(f"{name}: no image has a label in the column {label}.")
    notes: tuple[str, ...] = ()
    if unlabeled := sum(map(len, tables.values())) - sum(map(len, rows_by_part.values())):
        notes = (f"{unlabeled} of its images have no label and are left out",)
    short_name = re.sub(r"[^\w.-]+", "-", Path(os.path.abspath(name)).name).strip("-") or "data"
    split = _split(rows_by_part, short_name)
    note = f"its columns {image} and {label} are read"
    notes = (*notes, *split.notes, note if cache is None else f"{note}; its images are unpacked in {folder}")
    classes = tuple(keys)
    listed = Listing(
        short_name, folder, classes, classes, split.splits, split.origin, notes=notes,
        numbered=names is not None,
    )  # fmt: skip
    return listed, image


def _names(kind: Any) -> Sequence[str] | None:
    """The names of a column of class labels."""
    return getattr(kind, "names", None)


def undecoded(table: Any, image: str) -> Any:
    """A table of the column of images alone, as the bytes of their files."""
    from datasets import Image

    return table.with_format(None).select_columns([image]).cast_column(image, Image(decode=False))


def _columns(name: str, features: Mapping[str, Any], label: str | None) -> tuple[str, str]:
    """The columns of the images and of the classes. Raises DataError."""
    from datasets import ClassLabel, Image

    images = [
        column for column, feature in features.items()
        if isinstance(feature, Image) or (isinstance(feature, dict) and "bytes" in feature)
    ]  # fmt: skip
    if not images:
        raise DataError(f"{name} has no column of images: it has {list_names([*features])}.")
    classes = [column for column, feature in features.items() if isinstance(feature, ClassLabel)]
    plain = [column for column in ("label", "labels", "class") if column in features]
    labels = [label] if label is not None else classes or plain[:1]
    if len(labels) != 1 or labels[0] not in features:
        which = f"the columns {list_names(labels)}" if len(labels) > 1 else "no such column"
        raise DataError(
            f"{name} has {which} for the classes: name one of {list_names([*features])} with "
            "--dataset.columns label=COLUMN."
        )
    dtype = str(getattr(features[labels[0]], "dtype", type(features[labels[0]]).__name__))
    if not LABEL_TYPE.fullmatch(dtype):
        raise DataError(f"{name}: the column {labels[0]} holds {dtype}, not texts, numbers or booleans.")
    return images[0], labels[0]


def _labels(where: str, table: Any, column: str, names: Sequence[str] | None) -> list[str | None]:
    """The classes of the rows as texts, None where the label is withheld: for a class label -1, or if all
    rows of a split have -1, null or NaN. Raises DataError for another row without a label.
    """
    values = table.with_format(None).select_columns([column])[:][column]
    missing = [row for row, value in enumerate(values, start=1) if value is None or value != value]  # NaN
    if len(missing) == len(values):
        return [None] * len(values)
    if missing:
        raise DataError(f"{where}, row {missing[0]} has no label in the column {column}: remove or label it.")
    withheld = names is not None or {*values} == {-1}  # plain numbers may have -1 among others
    if names is not None and (odd := {*values} - {*range(-1, len(names))}):
        raise DataError(
            f"{where} has the label {min(odd)} in the column {column}, which has {len(names)} names."
        )
    texts = {
        value: names[value] if names else str(0.0 if value == 0 and isinstance(value, float) else value)
        for value in {*values}
    }
    return [None if withheld and value == -1 else compose(texts[value]) for value in values]


def _split(rows_by_part: dict[str, tuple[Row, ...]], name: str) -> Split:
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
        notes = (*notes, f"its splits {list_names(ignored)} are left out")
    if undivided is not None:
        return Split({UNDIVIDED: undivided}, "", notes)
    if "test" not in splits:
        raise DataError(f"{name} has the splits {list_names([*rows_by_part])}: none is to test on.")
    if "train" not in splits:
        notes = (*notes, "it has no images to train on: it can only be tested on")
    ordered = {part: splits.get(part, ()) for part in PARTS if part in {*splits, "train"}}
    return Split(ordered, "its splits", notes)


def _unpack(name: str, tables: Tables, image: str, cache: Path) -> Path:
    """A folder in the cache with the image files, a folder for each split, in the order of the rows; they are
    written unless that was done. A row without an image becomes an empty file. Raises DataError if no row has
    one.
    """

    facts = [fact for part, table in tables.items() for fact in (part, str(len(table)), table._fingerprint)]
    plain_name = re.sub(r"[^A-Za-z0-9]+", "-", name)[-60:]
    target = cache / f"{plain_name}-{fingerprint(image, *facts)}"
    if target.is_dir():
        return target
    filled = False
    with cached_folder(target) as unfinished:
        for part, table in tables.items():
            (unfinished / part).mkdir()
            for number, row in enumerate(undecoded(table, image)):
                content = (row[image] or {}).get("bytes") or b""
                filled = filled or bool(content)
                (unfinished / part / f"{number:09}{suffix_of(content)}").write_bytes(content)
        if not filled:
            raise DataError(
                f"{name} holds no image files, only their names at most: save it with save_to_disk of a "
                "current library datasets, which copies the images into it."
            )
    return target


def suffix_of(content: bytes) -> str:
    """The suffix of an image file by its content; ".bin" for what is none."""
    with suppress(Exception), open_image(content) as file:  # the exceptions of formats differ
        return ".jpg" if file.format in ("JPEG", "MPO") else f".{str(file.format).lower()}"
    return ".bin"
