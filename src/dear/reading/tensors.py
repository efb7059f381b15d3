"""Tensors and arrays from files: without pickle, of plain files only, and every value a finite number."""

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
"""What the reader of safetensors raises of a file that is cut or foreign."""


def read_tensors(path: Path, most: str = "tensor_bytes") -> dict[str, Tensor]:
    """The tensors of a small safetensors file, in memory. Raises ReadingError, also for a value that is no
    finite number; LimitError.
    """
    return parse_tensors(read_bytes(path, most), path)


def parse_tensors(content: bytes, where: object) -> dict[str, Tensor]:
    """The same of bytes that were read already."""
    try:
        tensors = load(content)
    except BROKEN as error:
        raise ReadingError(where, f"it is not a whole safetensors file ({first_line(error)})") from error
    require_finite(tensors.items(), where)
    return tensors


def map_tensors(path: Path) -> dict[str, Tensor]:
    """The same of a large file, mapped and not copied."""
    with opened(path):  # refuses what would be waited for
        at_most("tensor_bytes", path.stat().st_size, path)
    try:
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (no mapping)
    except BROKEN as error:
        raise ReadingError(path, f"it is not a whole safetensors file ({first_line(error)})") from error
    require_finite(tensors.items(), path)
    return tensors


def require_finite(tensors: Iterable[tuple[str, Tensor]], where: object) -> None:
    """Raise ReadingError that names the first tensor with a value that is no finite number."""
    for name, tensor in tensors:
        # The sum is a number only if each value is one, and takes no memory; of a large one it may overflow.
        if tensor.is_floating_point() and not math.isfinite(tensor.sum(dtype=torch.float64).item()):
            bad = int((~tensor.isfinite()).sum())
            if bad:
                raise ReadingError(
                    where, f"{bad:,} of {tensor.numel():,} values of {name[:80]!r} are no finite numbers"
                )


def map_array(path: Path, dtype: np.dtype[np.generic] | type[np.generic]) -> np.memmap:
    """The array of a .npy file of a type, mapped (copied when written to). Raises ReadingError for any other
    file.
    """
    with opened(path):
        pass
    try:
        array = np.load(path, mmap_mode="c", allow_pickle=False)
    except Exception as error:  # the header is read as Python's literals: it may fail anywhere in there
        raise ReadingError(path, f"it is no whole .npy file ({first_line(error)})") from error
    if not isinstance(array, np.memmap) or array.dtype != dtype:
        raise ReadingError(path, f"it is no array of {np.dtype(dtype)}")
    return array
