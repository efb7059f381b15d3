"""Weights in several safetensors files, listed by an index beside them, as the hub keeps large models."""

import re
from pathlib import Path
from typing import TypedDict

from torch import Tensor

from dear.limits import at_most
from dear.reading.files import ReadingError, require_inside
from dear.reading.plain import read_json
from dear.reading.tensors import map_tensors
from dear.reading.typed import shown, typed

SUFFIX = ".safetensors.index.json"
FILE = re.compile(r"[A-Za-z0-9][\w.-]*\.safetensors", re.ASCII)
"""The name of a file beside the index: it leads to no other folder."""


class Index(TypedDict):
    """The key of an index that is read: the file of each tensor."""

    weight_map: dict[str, str]


def weight_files(path: Path) -> dict[str, set[str]]:
    """The files that an index lists, in order, each with the names of its tensors. Raises ReadingError for a
    file that lies elsewhere, LimitError for too many.
    """
    files: dict[str, set[str]] = {}
    weight_map = typed(read_json(path, "config_values", links=True), Index, path)["weight_map"]
    at_most("weight_tensors", len(weight_map), path)
    for tensor, file in weight_map.items():
        if not FILE.fullmatch(file):
            raise ReadingError(path, f"its weight_map names {shown(file)}, no safetensors file beside it")
        files.setdefault(file, set()).add(tensor)
    if not files:
        raise ReadingError(path, "its weight_map lists no tensors")
    at_most("weight_files", len(files), path)
    return dict(sorted(files.items()))


def map_sharded(path: Path) -> dict[str, Tensor]:
    """The tensors of all files of an index, memory-mapped. Raises ReadingError for a file that is missing,
    damaged or holds other tensors than the index says; LimitError for files that are too large together.
    """
    tensors: dict[str, Tensor] = {}
    files = {require_inside(path.parent / name): names for name, names in weight_files(path).items()}
    at_most("tensor_bytes", sum(file.stat().st_size for file in files if file.is_file()), path)
    for file, names in files.items():
        part = map_tensors(file, links=True)
        if other := sorted(part.keys() ^ names):
            problem = "lacks" if other[0] in names else "also has"
            raise ReadingError(file, f"by {path.name} it {problem} the tensor {shown(other[0])}")
        tensors |= part
    return tensors
