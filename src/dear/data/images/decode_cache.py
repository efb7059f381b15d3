"""Decoded pictures on disk: one memory-mapped uint8 file each, keyed by the content of the image file."""

import hashlib
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from jaxtyping import UInt8
from torch import Tensor

from dear.data.dataset import Images
from dear.errors import OutputError
from dear.reading.files import ReadingError
from dear.reading.tensors import map_array
from dear.writing.files import atomic_write

VERSION = 3
"""Increment when `decode` gives other pixels for the same file or the format of the cache changes."""


class DecodeCache:
    """Pictures keyed by the SHA-256 of the file's bytes and the short side that they were reduced to.

    Pictures are written atomically, so that processes may share a store; a file that occurs in several data
    sets is stored once.
    """

    def __init__(self, folder: Path, short_side: int) -> None:
        self.folder = folder / "decoded" / f"v{VERSION}-{short_side}"

    @staticmethod
    def key(content: bytes) -> str:
        return hashlib.sha256(content).hexdigest()

    def get(self, key: str) -> UInt8[Tensor, "3 height width"] | None:
        """The memory-mapped picture of a key, or None if it is missing or damaged."""
        try:
            array = map_array(self._path(key), np.uint8)
        except ReadingError:
            return None
        if array.ndim != 3 or array.shape[0] != 3 or not array.size or not _sealed(array):
            return None
        return torch.from_numpy(array)

    def put(self, key: str, picture: UInt8[Tensor, "3 height width"]) -> None:
        """Store a picture. Raises OutputError if the folder cannot be written."""
        try:
            with atomic_write(self._path(key), shared=True) as file:
                np.save(file, picture.numpy())
                file.write(_sum(picture.numpy()))
        except OSError as error:
            raise OutputError(
                f"cannot write the decode cache {self.folder}: {error}. "
                "Choose another cache folder, or turn the decode cache off."
            ) from error

    def _path(self, key: str) -> Path:
        return self.folder / key[:2] / f"{key[2:]}.npy"


def _sum(picture: np.ndarray) -> bytes:
    """The checksum that follows a picture in its file, to detect overwritten files."""
    return zlib.crc32(np.ascontiguousarray(picture).data).to_bytes(4, "little")


def _sealed(picture: np.memmap) -> bool:
    with open(str(picture.filename), "rb") as file:
        file.seek(picture.offset + picture.nbytes)
        return file.read(5) == _sum(picture)


def fill(images: Images, batch: int = 256) -> Iterator[tuple[int, int]]:
    """Load all images once to fill their store; yields the number of images and bytes of each batch."""
    for indices in torch.arange(len(images)).split(batch):
        pictures = images.load(indices)
        yield len(pictures), sum(picture.nbytes for picture in pictures)
