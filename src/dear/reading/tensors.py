"""Tensors from safetensors files: without pickle, within limits."""

import math
from pathlib import Path

from safetensors import safe_open
from torch import Tensor

from dear.errors import first_line, of_memory
from dear.limits import require_at_most
from dear.reading.files import ReadingError, opened

MAX_DIMENSIONS, MAX_SIZES = 8, 2**40  # of a tensor, and the product of its sizes, zeros left out


def read_tensors(path: Path, size_limit: str = "tensor_bytes") -> dict[str, Tensor]:
    """The tensors of a small safetensors file, in memory. Raises ReadingError, also for values that are
    complex or not finite; LimitError.
    """
    tensors = {name: tensor.clone() for name, tensor in map_tensors(path, size_limit).items()}
    for name, tensor in tensors.items():
        if tensor.is_complex() or (tensor.is_floating_point() and not tensor.float().isfinite().all()):
            raise ReadingError(path, f"values of {name[:80]!r} are not finite numbers")
    return tensors


def map_tensors(path: Path, size_limit: str = "tensor_bytes") -> dict[str, Tensor]:
    """The tensors of a safetensors file, memory-mapped, their values unread. Raises ReadingError, also for
    shapes that no tensor can have; LimitError.
    """
    with opened(path):
        require_at_most(size_limit, path.stat().st_size, path)
    try:
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118 (no mapping)
                shape = file.get_slice(name).get_shape()
                if len(shape) > MAX_DIMENSIONS or math.prod(size or 1 for size in shape) > MAX_SIZES:
                    raise ValueError(f"no model has a tensor of the shape {shape!r:.80}")
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except Exception as error:  # the reader has no class for all
        if of_memory(error):
            raise
        raise ReadingError(path, f"it is not a complete safetensors file ({first_line(error)})") from error
