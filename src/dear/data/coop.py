"""Data sets in CoOp's layout: a folder of images and a list of its splits, split_zhou_<name>.json."""

import json
from collections.abc import Mapping, Sequence
from importlib.resources import files
from itertools import chain
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Int, UInt8
from PIL import Image, ImageOps
from torch import Tensor

from dear.data.dataset import Dataset, assemble, fingerprint
from dear.errors import DataError

PREFIX = "split_zhou_"
DEFAULT_TEMPLATE = "a photo of a {}."
SHORT_SIDE = 256
CACHE_BYTES = 512 * 2**20


class Row(NamedTuple):
    """One image of a split list."""

    path: str
    label: int
    name: str


class PhotoImages:
    """Image files of a folder, decoded when they are asked for and kept in memory while there is room.

    The first pictures to come stay: with passes over all of them, throwing out the oldest would never hit.
    The identity is made from relative paths, labels, file sizes and the short side, not from file contents.
    """

    def __init__(
        self,
        folder: Path,
        paths: Sequence[str],
        labels: Int[Tensor, "item"],
        short_side: int = SHORT_SIDE,
        cache_bytes: int = CACHE_BYTES,
    ) -> None:
        """Look at every file, open none. Errors: DataError with the first missing file and their number."""
        places = [folder / path for path in paths]
        sizes = [place.stat().st_size if place.is_file() else None for place in places]
        missing = [path for path, size in zip(paths, sizes, strict=True) if size is None]
        if missing:
            raise DataError(
                f"{len(missing)} of {len(paths)} images are not in {folder}; the first is {missing[0]}. "
                "Is the data set unpacked completely?"
            )
        self.folder, self.paths, self.labels = folder, tuple(paths), labels
        self.short_side, self.room = short_side, cache_bytes
        items = zip(paths, labels.tolist(), sizes, strict=True)
        self.identity = fingerprint(str(short_side), *(str(part) for item in items for part in item))
        self._kept: dict[int, UInt8[Tensor, "3 height width"]] = {}

    def __len__(self) -> int:
        return len(self.paths)

    def load(self, indices: Int[Tensor, "batch"]) -> list[UInt8[Tensor, "3 _height _width"]]:
        """The pictures at the given indices. Errors: DataError that names a file that cannot be decoded."""
        return [self._picture(index) for index in indices.tolist()]

    def _picture(self, index: int) -> UInt8[Tensor, "3 height width"]:
        if index in self._kept:
            return self._kept[index]
        picture = decode(self.folder / self.paths[index], self.short_side)
        if picture.nbytes <= self.room:
            self._kept[index] = picture
            self.room -= picture.nbytes
        return picture


def decode(path: Path, short_side: int) -> UInt8[Tensor, "3 height width"]:
    """Read an image file as people see it: turned as its EXIF says, in RGB, transparent parts on white.

    A short side above `short_side` pixels is brought down to it (bicubic, antialiased). Errors: DataError.
    """
    try:
        with Image.open(path) as file:
            file.load()
            image = _rgb(ImageOps.exif_transpose(file))
    except Exception as error:  # what a decoder raises on broken bytes differs from format to format
        raise DataError(f"cannot read the image {path}: {error}") from error
    if min(image.size) > short_side:
        width, height = (side * short_side // min(image.size) for side in image.size)
        image = image.resize((width, height), Image.Resampling.BICUBIC)
    return torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous()


def _rgb(image: Image.Image) -> Image.Image:
    if image.mode == "F":
        raise ValueError("floating-point pixels have no agreed range; save it with 8 or 16 bits")
    if image.mode.startswith("I"):  # 16 bits, grey: Pillow's own conversion would clip at 255
        levels = np.asarray(image).astype(np.float64).clip(0, 65535) / 257
        image = Image.fromarray(levels.round().astype(np.uint8))
    if image.has_transparency_data:
        image = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", image.size, "white"), image).convert("RGB")
    return image.convert("RGB")


def load_coop(folder: Path, short_side: int = SHORT_SIDE, cache_bytes: int = CACHE_BYTES) -> Dataset:
    """Read the one split list of a folder and find the folder of its images. No image is opened.

    Underscores of class names become spaces, as in CoOp. `cache_bytes` holds for each split.
    Errors: DataError for anything that is missing, malformed or ambiguous, naming the file.
    """
    split = _split_file(folder)
    lists = _lists(split)
    rows = [*chain.from_iterable(lists.values())]
    names, place = _names(split, rows), _image_folder(folder, split, rows)
    photos = {}
    for part, listed in lists.items():
        labels = torch.tensor([row.label for row in listed])
        photos[part] = PhotoImages(place, [row.path for row in listed], labels, short_side, cache_bytes)
    name = split.stem.removeprefix(PREFIX)
    template = known_templates().get(name, DEFAULT_TEMPLATE)
    return assemble(name, name, names, (template,), photos["train"], photos.get("val"), photos["test"])


def known_templates() -> Mapping[str, str]:
    """The prompt of each known data set, by the name in its split file (Table 4 of the supplement)."""
    known: dict[str, str] = json.loads(files(__package__).joinpath("templates.json").read_bytes())
    return known


def _split_file(folder: Path) -> Path:
    found = sorted(folder.glob(f"{PREFIX}*.json"))
    if not found:
        raise DataError(f"{folder} has no {PREFIX}*.json, the list of splits of CoOp's layout.")
    if len(found) > 1:
        raise DataError(f"{folder} has {len(found)} lists of splits ({_listed(found)}). Leave one.")
    return found[0]


def _lists(split: Path) -> dict[str, list[Row]]:
    """The rows of train, test and, where there are any, val."""
    try:
        content: Any = json.loads(split.read_bytes())
    except (ValueError, OSError) as error:
        raise DataError(f"{split} is not readable JSON: {error}") from error
    lists: dict[str, list[Row]] = {}
    for part in ("train", "val", "test"):
        rows = content.get(part, []) if isinstance(content, dict) else None
        if not isinstance(rows, list) or (part != "val" and not rows):
            raise DataError(f'{split} needs a list "{part}" of [path, label, class name].')
        if rows:
            lists[part] = [_row(f"{split}, {part}[{index}]", row) for index, row in enumerate(rows)]
    return lists


def _row(where: str, row: Any) -> Row:
    match row:
        case [str(path), int(label), str(name)] if path and name:
            forms = PurePosixPath(path), PureWindowsPath(path)
            if any(form.anchor or ".." in form.parts for form in forms) or "\0" in path:
                raise DataError(f"{where}: the path {path!r} leads out of the image folder.")
            if label < 0:
                raise DataError(f"{where}: label {label} of {path} is out of range; labels count from 0.")
            return Row(path, label, name)
    raise DataError(f"{where} is {row!r}, not [path, label, class name].")


def _names(split: Path, rows: Sequence[Row]) -> list[str]:
    names: dict[int, str] = {}
    for row in rows:
        if names.setdefault(row.label, row.name) != row.name:
            raise DataError(
                f"{split}: label {row.label} has two names, {names[row.label]!r} and {row.name!r}."
            )
    gap = next((label for label in range(len(names)) if label not in names), None)
    if gap is not None:
        raise DataError(f"{split}: labels run from 0 to {max(names)}, but no image has label {gap}.")
    return [names[label].replace("_", " ") for label in range(len(names))]


def _image_folder(folder: Path, split: Path, rows: Sequence[Row]) -> Path:
    """The one folder in which the listed paths lie: beside the split list, or that of the list itself."""
    beside = sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
    found = [place for place in (folder, *beside) if any((place / row.path).is_file() for row in rows)]
    if not found:
        raise DataError(
            f"none of the {len(rows)} images of {split} exists; the first is {rows[0].path}. "
            f"Looked in {folder} and in its folders ({_listed(beside)})."
        )
    if len(found) > 1:
        raise DataError(f"the images of {split} lie in more than one folder: {_listed(found)}. Leave one.")
    return found[0]


def _listed(paths: Sequence[Path]) -> str:
    return ", ".join(path.name for path in paths) or "none"
