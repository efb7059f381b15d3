"""Small image files for tests of readers, and data sets of them."""

import struct
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from dear.data.dataset import Dataset
from dear.data.loading import load_dataset
from dear.data.settings import DataSettings
from dear.errors import DataError
from tests.helpers.pictures import save_picture

COUNTS = {"ant": 7, "sea_horse": 11}


def picture(path: Path, level: int = 0, size: tuple[int, int] = (7, 5)) -> Path:
    """An image file of one level; `size` is width and height."""
    return save_picture(path, Image.new("RGB", size, (level, level, level)))


def class_folders(root: Path, counts: dict[str, int]) -> Path:
    """`root/class/number.png`: image n of a class has the level n; those of class k are 7 + k pixels wide."""
    for label, (name, count) in enumerate(counts.items()):
        for number in range(count):
            picture(root / name / f"{number}.png", number, (7 + label, 5))
    return root


def load(source: Any, settings: DataSettings) -> Dataset:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return load_dataset(str(source) if isinstance(source, Path) else source, settings)


def refused(path: Path, settings: DataSettings, message: str) -> None:
    """One line, and nothing left in the caches."""
    with pytest.raises(DataError, match=message) as caught:
        load(path, settings)
    assert "\n" not in str(caught.value)
    left = [path.relative_to(settings.cache_folder()) for path in settings.cache_folder().rglob("*")]
    assert not [
        path for path in left if path.suffix == ".part" or (path.parts[1:] and path.parts[0] == "archives")
    ]


def paths(data: Dataset) -> dict[str, set[str]]:
    return {part: {*getattr(data, part).paths} for part in ("train", "test")}


def gray_tiff(levels: np.ndarray, *, white_is_zero: bool, turned: int = 1) -> bytes:
    """A TIFF of one strip, by its specification (TIFF 6.0, sections 2 and 4): Pillow writes no such one."""
    (height, width), bits = levels.shape, 8 * levels.itemsize
    strip = levels.astype(levels.dtype.newbyteorder("<")).tobytes()
    tags = {
        256: width, 257: height, 258: bits, 259: 1, 262: 0 if white_is_zero else 1, 273: 8, 274: turned,
        277: 1, 278: height, 279: len(strip),
    }  # fmt: skip
    entries = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in tags.items())
    return (
        b"II*\0"
        + struct.pack("<I", 8 + len(strip))
        + strip
        + struct.pack("<H", len(tags))
        + entries
        + bytes(4)
    )
