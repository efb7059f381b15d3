"""Tensors from files: without pickle, within limits."""

import math
from collections.abc import Iterable
from pathlib import Path

from safetensors import SafetensorError, safe_open
from torch import Tensor

from dear.errors import first_line
from dear.limits import at_most
from dear.reading.files import ReadingError, opened
from dear.reading.typed import shown

MAX_DIMENSIONS, MAX_SIZES = 8, 2**40  # of a tensor, and the product of its sizes, zeros left out
AT_ONCE = 2**20
"""Values that are tested together, which takes 8 bytes each."""
BROKEN = (SafetensorError, OSError, ValueError, KeyError, AttributeError, RuntimeError, OverflowError)
"""What the safetensors reader raises for an invalid file."""


def read_tensors(path: Path, size_limit: str = "tensor_bytes") -> dict[str, Tensor]:
    """The tensors of a small safetensors file, in memory. Raises ReadingError, also for values that are not
    finite; LimitError.
    """
    tensors = {name: tensor.clone() for name, tensor in map_tensors(path, size_limit).items()}
    require_finite(tensors.items(), path)
    return tensors


def map_tensors(path: Path, size_limit: str = "tensor_bytes") -> dict[str, Tensor]:
    """The tensors of a safetensors file, memory-mapped, their values unread. Raises ReadingError, also for
    shapes that no tensor can have; LimitError.
    """
    with opened(path):
        at_most(size_limit, path.stat().st_size, path)
    try:
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118 (no mapping)
                shape = file.get_slice(name).get_shape()
                if len(shape) > MAX_DIMENSIONS or math.prod(size or 1 for size in shape) > MAX_SIZES:
                    raise ReadingError(path, f"no model has a tensor of the shape {shown(shape)}")
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except BROKEN as error:
        raise ReadingError(path, f"it is not a complete safetensors file ({first_line(error)})") from error


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
