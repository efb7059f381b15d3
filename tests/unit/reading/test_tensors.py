"""Tensors from files: whole, of numbers."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from dear.reading.files import ReadingError
from dear.reading.tensors import map_tensors, read_tensors
from tests.helpers.errors import refuses


def header(**entry: Any) -> bytes:
    text = json.dumps({"x": {"dtype": "F32", **entry}}).encode()
    return len(text).to_bytes(8, "little") + text


def test_tensors_are_whole_and_finite(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    tensors = {"x": torch.arange(21.0).view(3, 7), "n": torch.arange(5)}
    tensors["e"] = torch.ones(3).to(torch.float8_e4m3fn)
    for read in (read_tensors, map_tensors):
        save_file(tensors, path)
        assert all(torch.equal(tensor, tensors[name]) for name, tensor in read(path).items())
        path.write_bytes(path.read_bytes()[:-1])
        with pytest.raises(ReadingError):
            read(path)
    for bad in (float("nan"), float("inf"), 1j):
        save_file({"x": torch.tensor([1.0, bad])}, path)
        refuses(ReadingError, "'x'", read_tensors, path)


@pytest.mark.parametrize(
    "content",
    [
        *(
            header(shape=shape, data_offsets=[0, 0 if 0 in shape else 4]) + bytes(0 if 0 in shape else 4)
            for shape in ([0, 2**63], [2**21, 0, 2**21], [1] * 70, [-1, -1], [1.0], [True])
        ),
        header(shape=[2**38], data_offsets=[0, 2**40]), (2**40).to_bytes(8, "little") + b"{}", b"", b"x",
    ],
)  # fmt: skip
def test_headers_that_promise_what_is_not_there(tmp_path: Path, content: bytes) -> None:
    """Empty tensors of such shapes, and those of many sizes, broke the libraries that read them."""
    path = tmp_path / "a.safetensors"
    path.write_bytes(content)
    for read in (read_tensors, map_tensors):
        with pytest.raises(ReadingError):
            read(path)
