"""Tensors and arrays from files: without pickle, regular files only, finite values only."""

import io
import math
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.torch import load
from torch import Tensor

from dear.errors import first_line
from dear.limits import at_most
from dear.reading.files import ReadingError, opened, read_bytes
from dear.reading.plain import parse_json
from dear.reading.typed import Count, shown, typed

HEADER_LENGTH = 8  # bytes that hold the length of a safetensors header
MAX_DIMENSIONS, MAX_SIZES = 8, 2**40  # of a tensor, and the product of its sizes, zeros left out
MAX_HEADER = 16 * 2**20  # bytes, of some 100,000 tensors

AT_ONCE = 2**20
"""Values that are tested together, which takes 8 bytes each."""

BROKEN = (SafetensorError, OSError, ValueError, KeyError, RuntimeError, OverflowError)
"""What the safetensors reader raises for an invalid file."""


def read_tensors(path: Path, size_limit: str = "tensor_bytes", *, links: bool = False) -> dict[str, Tensor]:
    """The tensors of a small safetensors file, in memory. Raises ReadingError, also for values that are not
    finite; LimitError.
    """
    return parse_tensors(read_bytes(path, size_limit, links=links), path)


def parse_tensors(content: bytes, where: object) -> dict[str, Tensor]:
    """The same from the content of a file."""
    _require_whole(io.BytesIO(content), len(content), where)
    try:
        tensors = load(content)
    except BROKEN as error:
        raise ReadingError(where, f"it is not a complete safetensors file ({first_line(error)})") from error
    require_finite(tensors.items(), where)
    return tensors


def map_tensors(path: Path, *, links: bool = False) -> dict[str, Tensor]:
    """The tensors of a large safetensors file, memory-mapped, their values unread. Raises ReadingError,
    LimitError.
    """
    with opened(path, links=links) as file:  # refuses pipes and devices
        size = path.stat().st_size
        at_most("tensor_bytes", size, path)
        _require_whole(file, size, path)
    try:
        with safe_open(path, framework="pt") as mapped:
            return {name: mapped.get_tensor(name) for name in mapped.keys()}  # noqa: SIM118 (no mapping)
    except BROKEN as error:
        raise ReadingError(path, f"it is not a complete safetensors file ({first_line(error)})") from error


def _require_whole(file: BinaryIO, size: int, where: object) -> None:
    """Raise ReadingError unless the header accounts for the whole file, before the file is mapped, and for
    shapes that no library can have.
    """
    length = int.from_bytes(file.read(HEADER_LENGTH), "little")
    if length > min(size, MAX_HEADER):
        raise ReadingError(where, "it is not a complete safetensors file (its header is too long)")
    header = parse_json(file.read(length), where, "config_values")
    if not isinstance(header, dict):
        raise ReadingError(where, "it is not a complete safetensors file (its header lists no tensors)")
    entries = [entry for name, entry in header.items() if name != "__metadata__"]
    if not all(isinstance(entry, dict) for entry in entries):
        raise ReadingError(where, "it is not a complete safetensors file (its header lists no tensors)")
    for entry in entries:
        shape = typed(entry.get("shape"), list[Count], where, "shape")
        if len(shape) > MAX_DIMENSIONS or math.prod(size or 1 for size in shape) > MAX_SIZES:
            raise ReadingError(where, f"no model has a tensor of the shape {shown(shape)}")
    spans = [
        typed(entry.get("data_offsets"), tuple[Count, Count], where, "data_offsets") for entry in entries
    ]
    if size != HEADER_LENGTH + length + max((end for _, end in spans), default=0):
        raise ReadingError(
            where, "it is not a complete safetensors file (its size is not that of its header)"
        )


def require_finite(tensors: Iterable[tuple[str, Tensor]], where: object) -> None:
    """Raise ReadingError naming the first tensor with complex values or one that is not finite."""
    for name, tensor in tensors:
        if tensor.is_complex():
            raise ReadingError(where, f"the values of {name[:80]!r} are complex numbers")
        if tensor.is_floating_point() and (bad := sum(map(_not_finite, tensor.reshape(-1).split(AT_ONCE)))):
            raise ReadingError(where, f"{bad:,} of {tensor.numel():,} values of {name[:80]!r} are not finite")


def _not_finite(values: Tensor) -> int:
    """How many values are not finite. Their sum, which is quicker, is finite only if all are."""
    if values.dtype.itemsize > 1 and math.isfinite(values.sum().item()):
        return 0
    return int((~values.double().isfinite()).sum())  # types of 8 bits have no arithmetic


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
