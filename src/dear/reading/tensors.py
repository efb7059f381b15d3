"""Tensors and arrays from files: without pickle, regular files only, finite values only."""

import math
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load
from torch import Tensor

from dear.errors import first_line
from dear.limits import at_most
from dear.reading.files import ReadingError, opened, read_bytes

BROKEN = (SafetensorError, OSError, ValueError, KeyError, RuntimeError, OverflowError)
"""What the safetensors reader raises for an invalid file."""


def read_tensors(path: Path, size_limit: str = "tensor_bytes") -> dict[str, Tensor]:
    """The tensors of a small safetensors file, in memory. Raises ReadingError, also for values that are not
    finite; LimitError.
    """
    return parse_tensors(read_bytes(path, size_limit), path)


def parse_tensors(content: bytes, where: object) -> dict[str, Tensor]:
    """The same from the content of a file."""
    try:
        tensors = load(content)
    except BROKEN as error:
        raise ReadingError(where, f"it is not a complete safetensors file ({first_line(error)})") from error
    require_finite(tensors.items(), where)
    return tensors


def map_tensors(path: Path) -> dict[str, Tensor]:
    """The same for a large file, memory-mapped instead of copied."""
    with opened(path):  # refuses pipes and devices
        at_most("tensor_bytes", path.stat().st_size, path)
    try:
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (no mapping)
    except BROKEN as error:
        raise ReadingError(path, f"it is not a complete safetensors file ({first_line(error)})") from error
    require_finite(tensors.items(), path)
    return tensors


def require_finite(tensors: Iterable[tuple[str, Tensor]], where: object) -> None:
    """Raise ReadingError naming the first tensor with a value that is not finite."""
    for name, tensor in tensors:
        # The sum is finite only if all values are, and takes no memory; that of a large tensor may overflow.
        if tensor.is_floating_point() and not math.isfinite(tensor.sum(dtype=torch.float64).item()):
            bad = int((~tensor.isfinite()).sum())
            if bad:
                raise ReadingError(
                    where, f"{bad:,} of {tensor.numel():,} values of {name[:80]!r} are not finite"
                )


def map_array(path: Path, dtype: np.dtype[np.generic] | type[np.generic]) -> np.memmap:
    """The array in a .npy file, memory-mapped copy-on-write. Raises ReadingError for an invalid file
    or another dtype.
    """
    with opened(path):
        pass
    try:
        array = np.load(path, mmap_mode="c", allow_pickle=False)
    except Exception as error:  # the header is parsed as Python literals, which may fail anywhere
        raise ReadingError(path, f"it is not a complete .npy file ({first_line(error)})") from error
    if not isinstance(array, np.memmap) or array.dtype != dtype:
        raise ReadingError(path, f"it is not an array of {np.dtype(dtype)}")
    return array
