"""Decoded pictures on disk: one memory-mapped uint8 file each, found by the content of the image file."""

import hashlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from jaxtyping import UInt8
from torch import Tensor

from dear.data.dataset import Images
from dear.data.files import whole
from dear.errors import OutputError

VERSION = 1
"""To be counted up when `decode` gives other pixels for the same file."""


class PictureStore:
    """Pictures by the SHA-256 of their file's bytes and the short side they were brought down to.

    A picture is written under a temporary name and then renamed, so that none is ever half there; processes
    may share a store, and a file that occurs in many data sets is kept once.
    """

    def __init__(self, folder: Path, short_side: int) -> None:
        self.folder = folder / "decoded" / f"v{VERSION}-{short_side}"

    @staticmethod
    def key(content: bytes) -> str:
        return hashlib.sha256(content).hexdigest()

    def get(self, key: str) -> UInt8[Tensor, "3 height width"] | None:
        """The picture of a key, mapped and not read, or None if it is not there or damaged."""
        try:
            return torch.from_numpy(np.load(self._path(key), mmap_mode="c"))
        except (OSError, ValueError, EOFError):
            return None

    def put(self, key: str, picture: UInt8[Tensor, "3 height width"]) -> None:
        """Keep a picture. Raises OutputError if the folder cannot be written to."""
        try:
            with whole(self._path(key), shared=True) as file:
                np.save(file, picture.numpy())
        except OSError as error:
            raise OutputError(
                f"cannot write the decode cache {self.folder}: {error}. "
                "Choose another folder of caches, or do without the decode cache."
            ) from error

    def _path(self, key: str) -> Path:
        return self.folder / key[:2] / f"{key[2:]}.npy"


def fill(images: Images, batch: int = 256) -> Iterator[tuple[int, int]]:
    """Load all images once, so that they are in their store: yields images and bytes of each batch."""
    for indices in torch.arange(len(images)).split(batch):
        pictures = images.load(indices)
        yield len(pictures), sum(picture.nbytes for picture in pictures)
