"""The files of a Hugging Face data set: those that it may name, which are below its folders once links are
resolved, and what its Arrow files may hold.
"""

import os
import re
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from dear.data.images.raster import read_image
from dear.data.sources.archive import SMALLEST_FILE, require_modest
from dear.errors import DataError, first_line
from dear.limits import at_most
from dear.reading.files import ReadingError, opened
from dear.reading.plain import parse_json, read_json
from dear.reading.typed import typed

LABEL_TYPE = re.compile(r"(large_)?string|bool|u?int(8|16|32|64)|float(32|64)")
SPLITS_LIST = "dataset_dict.json"
STATE = "state.json"
INFO = "dataset_info.json"
MAX_PATH = 1000  # characters of a path
BATCH = 1000  # rows read at a time
SHARING = ("string_view", "binary_view", "list_view", "large_list_view", "run_end_encoded", "dictionary")
"""Arrow types that may refer to the same bytes any number of times."""
EXPERIMENTAL = b"ARROW:experimental_compression"  # how Arrow 0.17 marked compressed batches


def saved_tables(folder: Path) -> dict[str, Any]:
    """The tables of a folder of save_to_disk by split, "all" without splits. Only the files that were checked
    are opened; a format that a table was saved with, for which its library loads others, is not read.

    Raises DataError for a folder with both kinds of lists, for malformed lists, for what is not a regular
    file below the folder or is listed twice, and for an Arrow file whose content takes more memory than the
    file has bytes.
    """
    folder = folder.absolute()
    splits_list = folder / SPLITS_LIST
    if not splits_list.is_file():
        return {"all": _saved_table(folder, folder)}
    if extra := [name for name in (STATE, INFO) if (folder / name).exists()]:
        raise DataError(
            f"{folder} has {SPLITS_LIST}, of a data set with splits, and {extra[0]}, of one without: remove "
            "what does not belong to it, or save it again into an empty folder."
        )
    content = typed(read_json(splits_list), dict[str, Any], splits_list)
    names = typed(content.get("splits"), list[str], splits_list, "splits")
    parts = _distinct(folder, names, f"{splits_list}, splits")
    return {name: _saved_table(folder, part) for name, part in zip(names, parts, strict=True)}


def _saved_table(folder: Path, part: Path) -> Any:
    import datasets

    info = typed(read_json(_regular(folder, part / INFO)), dict[str, Any], part / INFO)
    _require_few([info.get("features")], part / INFO)
    state = typed(read_json(_regular(folder, part / STATE)), dict[str, Any], part / STATE)
    listed = typed(state.get("_data_files"), list[dict[str, Any]], part / STATE, "_data_files")
    names = [typed(file.get("filename"), str, part / STATE, "_data_files.filename") for file in listed]
    tables = list[Any]()
    for file in _distinct(folder, [str(part / name) for name in names], str(part / STATE)):
        schema = _uncompressed(_regular(folder, file))
        require_few_names(schema, file)
        features = datasets.Features.from_arrow_schema(schema)
        if (stated := datasets.DatasetInfo(features=info.get("features")).features) is not None:
            features = stated.reorder_fields_as(features)
        # The library would cast every column, by offsets that nobody has checked.
        if features.arrow_schema != schema or (tables and tables[0].data.schema != schema):
            raise ReadingError(file, f"{INFO} or another file states other types of columns: save it again")
        tables.append(datasets.Dataset.from_file(str(file), info=datasets.DatasetInfo(features=features)))
    return datasets.concatenate_datasets(tables)


def require_few_names(schema: Any, where: object) -> None:
    """Raise LimitError if the features in the metadata of an Arrow schema have too many class names."""
    if features := (schema.metadata or {}).get(b"huggingface"):
        _require_few([parse_json(features, where)], where)


def _require_few(features: Any, where: object) -> None:
    """Raise LimitError for too many class names, of which the library makes tables."""
    remaining = [features]
    while remaining:
        value = remaining.pop()
        names = value.get("names") if isinstance(value, dict) else None
        at_most("classes", len(names) if isinstance(names, list) else 0, where)
        entries = value.values() if isinstance(value, dict) else value
        remaining += [entry for entry in entries if isinstance(entry, dict | list)]


def _distinct(folder: Path, names: Iterable[str], where: str) -> list[Path]:
    """The paths that lists name below the folder, links resolved."""
    paths = dict[Path, None]()
    for name in names:
        path = file_below([folder], name, where)
        if path in paths:
            raise DataError(f"{where}: {name[-200:]!r} is listed twice: save the data set again.")
        paths[path] = None
    return [*paths]


def data_folders(name: str) -> tuple[Path, ...]:
    """The folders whose files a data set may name: the one it was saved in, or, from the hub, its part of the
    hub's cache and the folder that the library unpacks archives into.
    """
    if (folder := Path(name).expanduser()).is_dir():
        return (folder,)
    import datasets
    from huggingface_hub.constants import HF_HUB_CACHE
    from huggingface_hub.file_download import repo_folder_name

    repository = repo_folder_name(repo_id=name.partition(":")[0], repo_type="dataset")
    return Path(HF_HUB_CACHE, repository), Path(datasets.config.EXTRACTED_DATASETS_PATH)


def file_below(folders: Iterable[Path], name: str, where: str) -> Path:
    """The path of a file that a data set names, links resolved. Raises DataError outside its folders."""
    for folder in folders:
        top = os.path.realpath(folder)
        usable = "\0" not in name and len(name) <= MAX_PATH
        path = os.path.realpath(os.path.join(top, name)) if usable else ""
        if path and os.path.commonpath([top, path]) == top:
            return Path(path)
    raise DataError(
        f"{where}: {name[:200]!r} is not a file of the data set. A data set may name only files of its "
        "own; save one of yours with save_to_disk, which copies its images into it."
    )


def _uncompressed(file: Path) -> Any:
    """The schema of an Arrow file that can be used as it lies on the disk; nothing in it is unpacked.

    `save_to_disk` writes nothing else. Raises ReadingError for compressed batches, for types that may refer
    to the same bytes repeatedly, and for what is not an Arrow stream.
    """
    import pyarrow

    with pyarrow.memory_map(str(file)) as source:
        try:
            schema = pyarrow.ipc.open_stream(source).schema
            types = [*kinds(schema)]
            at_most("columns", len(types), file)
            source.seek(0)
            messages = pyarrow.ipc.MessageReader.open_stream(source)
            compressed = any(
                _is_compressed(bytes(message.metadata)) for message in messages if message.type != "schema"
            )
        except (pyarrow.ArrowException, OSError, struct.error, StopIteration) as error:
            raise ReadingError(file, f"it is not an Arrow stream ({first_line(error)})") from error
    if compressed:
        raise ReadingError(file, "its batches are compressed, which save_to_disk does not do: save it again")
    if shared := [kind for kind in types if kind.startswith(SHARING)]:
        raise ReadingError(file, f"it has values of the type {shared[0][:100]}: cast them to a plain type")
    return schema


def kinds(fields: Iterable[Any]) -> Iterator[str]:
    """The names of the types of Arrow fields and of those below them."""
    for field in fields:
        kind = getattr(field.type, "storage_type", field.type)  # of an extension
        yield str(kind)
        yield from kinds(kind.field(index) for index in range(kind.num_fields))


def _is_compressed(metadata: bytes) -> bool:
    """Whether a message of an Arrow stream is a compressed batch of rows.

    In the flat buffer, field 2 of a message is its header, and field 3 of a batch's header its compression
    (Message.fbs of Apache Arrow). pyarrow has checked the offsets, but does not tell.
    """

    def number(form: str, at: int) -> int:
        return int(struct.unpack_from(form, metadata, at)[0])

    def field(table: int, index: int) -> int:
        """The position of a table's field, 0 if it has none."""
        offsets = table - number("<i", table)
        entry = 4 + 2 * index
        offset = number("<H", offsets + entry) if entry < number("<H", offsets) else 0
        return table + offset if offset else 0

    header = field(number("<I", 0), 2)
    batch = header + number("<I", header)
    return field(batch, 3) > 0 or EXPERIMENTAL in metadata


def arrow_files(name: str, tables: Mapping[str, Any]) -> list[Path]:
    """The Arrow files of the tables. Raises DataError for a table that is in memory only."""
    files = {part: [Path(file["filename"]) for file in table.cache_files] for part, table in tables.items()}
    if part := next((part for part, paths in files.items() if not paths), None):
        raise DataError(f"{name}: the split {part} is in memory only: save it with save_to_disk.")
    return [path for paths in files.values() for path in paths]


def labels_of(name: str, table: Any, column: str) -> list[Any]:
    """The labels of the rows, equal ones as one object; -1 of a numbered class is a label that is held back.

    Raises DataError for a row without a label or with a number that has no name, LimitError for too many or
    too long labels.
    """
    labels, seen = list[Any](), dict[Any, Any]()
    count = len(getattr(table.features[column], "names", ()))
    for batch in table.select_columns([column]).with_format("arrow").iter(BATCH):
        for label in batch[column].to_pylist():
            if label not in seen:
                where = f"{name}, row {len(labels) + 1}"
                if label is None or label != label:  # NaN
                    raise DataError(f"{where} has no label in the column {column}: remove it or label it.")
                if count and not -1 <= label < count:
                    raise DataError(
                        f"{where} has the label {label} in the column {column}, which has {count} names, "
                        "counted from 0: correct it."
                    )
                at_most("classes", len(seen) + 1, name)
                at_most("class_name", len(str(label)), name)
            labels.append(seen.setdefault(label, label))
    return labels


class CellReader:
    """The image files in the cells of a data set, with a bound on what they come to.

    Cells may name one file again and again, or be empty, so that a small data set would fill the disk.
    """

    def __init__(self, name: str, tables: Mapping[str, Any]) -> None:
        self.name, self.folders = name, data_folders(name)
        self.counted = set[Path]()
        self.size = sum(map(_bytes_on_disk, arrow_files(name, tables)))
        self.unpacked = 0

    def read(self, cell: Mapping[str, Any] | None, part: str, row: int) -> bytes:
        """The image file in a cell; empty if there is none, which is reported as an empty file.

        Raises DataError for a file that is missing, irregular or outside the data set, LimitError for too
        much data.
        """
        where = f"{self.name}, {part}, row {row + 1}"
        content, name = (cell or {}).get("bytes"), (cell or {}).get("path")
        if content is not None:
            at_most("image_bytes", len(content), where)
        elif name:
            path = file_below(self.folders, name, where)
            content = read_image(path)
            if path not in self.counted:
                self.counted.add(path)
                self.size += len(content)
        self.unpacked += max(SMALLEST_FILE, len(content or b""))
        require_modest(self.name, self.unpacked, self.size)
        return content or b""


def require_usable(name: str, tables: Mapping[str, Any], image: str, label: str) -> None:
    """Check that the columns are alike in all splits, that the labels are plain values, not files to be
    opened, and that class names are texts. Raises DataError.
    """
    feature = next(iter(tables.values())).features[label]
    for part, table in tables.items():
        if {image, label} - {*table.features}:
            raise DataError(f"{name}: the split {part} has no columns {image} and {label}.")
        if table.features[label] != feature or type(table.features[image]).__name__ != "Image":
            raise DataError(
                f"{name}: the columns {image} and {label} of the split {part} are of other types."
            )
    if type(feature).__name__ not in ("ClassLabel", "Value"):
        raise DataError(f"{name}: the column {label} holds {type(feature).__name__}, not classes.")
    if (dtype := str(getattr(feature, "dtype", ""))) and not LABEL_TYPE.fullmatch(dtype):
        raise DataError(f"{name}: the column {label} holds {dtype[:100]}, not texts, numbers or booleans.")
    names: Sequence[Any] = getattr(feature, "names", None) or ()
    if not all(isinstance(classname, str) for classname in names):
        raise DataError(f"{name}: the class names of the column {label} are not all text.")


def require_valid(name: str, tables: Mapping[str, Any], columns: list[str]) -> None:
    """Check every value of the columns that are read: a forged Arrow file may point outside of its memory.
    Other columns, of which thousands may share their bytes, are not visited. Raises DataError.
    """
    try:
        for table in tables.values():
            table.select_columns(columns).data.validate(full=True)
    except Exception as error:  # pyarrow's classes, and its own ones for what is not in UTF-8
        raise DataError(f"{name}: its values are damaged ({first_line(error)}): save it again.") from error


def _bytes_on_disk(file: Path) -> int:
    """The size of a file, without the holes of a sparse one."""
    facts = file.stat()
    return min(facts.st_size, 512 * getattr(facts, "st_blocks", facts.st_size))


def _regular(folder: Path, path: Path) -> Path:
    file = file_below([folder], str(path), str(path)[:500])
    with opened(file):
        return file
