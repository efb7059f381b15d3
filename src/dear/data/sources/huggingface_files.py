"""The files that a Hugging Face data set may name: those below its folders, once links are resolved."""

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from dear.data.images.raster import read_image
from dear.data.sources.archive import require_modest
from dear.errors import DataError
from dear.limits import at_most
from dear.reading.files import opened
from dear.reading.plain import read_json
from dear.reading.typed import typed

SPLITS_LIST = "dataset_dict.json"
STATE = "state.json"
INFO = "dataset_info.json"
MAX_PATH = 1000  # characters of a path


def require_confined(folder: Path) -> None:
    """Check the lists of a folder of save_to_disk, which name its splits and their Arrow files, before the
    library datasets opens what they name.

    Raises DataError for malformed lists and for what is not a regular file below the folder.
    """
    parts, splits_list = [folder], folder / SPLITS_LIST
    if splits_list.is_file():
        content = typed(read_json(splits_list), dict[str, Any], splits_list)
        names = typed(content.get("splits"), list[str], splits_list, "splits")
        parts = [file_below([folder], name, f"{splits_list}, splits") for name in names]
    for part in parts:
        read_json(_regular(folder, part / INFO))
        state = typed(read_json(_regular(folder, part / STATE)), dict[str, Any], part / STATE)
        files = typed(state.get("_data_files"), list[dict[str, Any]], part / STATE, "_data_files")
        for file in files:
            name = typed(file.get("filename"), str, part / STATE, "_data_files.filename")
            _regular(folder, part / name)


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


class CellReader:
    """The image files in the cells of a data set, with a bound on what they come to.

    Cells may name one file again and again, so that a small data set would fill the disk.
    """

    def __init__(self, name: str, tables: Mapping[str, Any]) -> None:
        self.name, self.folders = name, data_folders(name)
        self.counted = set[Path]()
        self.size = sum(table.data.nbytes for table in tables.values())
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
        self.unpacked += len(content or b"")
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
    names: Sequence[Any] = getattr(feature, "names", None) or ()
    if not all(isinstance(classname, str) for classname in names):
        raise DataError(f"{name}: the class names of the column {label} are not all text.")


def _regular(folder: Path, path: Path) -> Path:
    file = file_below([folder], os.path.abspath(path), str(path)[:500])
    with opened(file):
        return file
