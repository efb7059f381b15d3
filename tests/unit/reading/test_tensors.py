"""Tensors and arrays from files: whole, of numbers."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from dear.reading.files import ReadingError
from dear.reading.tensors import (
    AT_ONCE,
    map_tensors,
    read_tensors,
    require_finite,
)


@pytest.mark.parametrize("read", [read_tensors, map_tensors])
def test_tensors_are_whole_and_numbers(tmp_path: Path, read: object) -> None:
    assert callable(read)
    path = tmp_path / "a.safetensors"
    tensors = {"x": torch.arange(21.0).view(3, 7), "n": torch.arange(5)}
    save_file(tensors, path)
    assert all(torch.equal(one, tensors[name]) for name, one in read(path).items())
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    with pytest.raises(ReadingError, match="not a complete safetensors file"):
        read(path)
    for bad in (float("nan"), float("inf"), -float("inf")):
        tensors["x"][1, 2] = bad
        save_file(tensors, path)
        with pytest.raises(ReadingError, match="1 of 21 values of 'x' are not finite"):
            read_tensors(path)


@pytest.mark.parametrize("read", [read_tensors, map_tensors])
@pytest.mark.parametrize(
    "shape", [[0, 2**63], [0, 2**62], [2**21, 0, 2**21], [1] * 70, [-1, -1], [1.0], [True]]
)
def test_shapes_that_no_tensor_has(tmp_path: Path, read: Any, shape: list[Any]) -> None:
    """Empty tensors of such shapes, and those of many sizes, broke the libraries that read them."""
    path, values = tmp_path / "a.safetensors", 0 if 0 in shape else 1
    header = json.dumps({"x": {"dtype": "F32", "shape": shape, "data_offsets": [0, 4 * values]}}).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(4 * values))
    with pytest.raises(ReadingError, match=r"no model has a tensor of the|not a complete safetensors"):
        read(path)


def test_infinities_that_cancel_and_sums_beyond_float32_are_told_apart() -> None:
    both = torch.tensor([float("inf"), -float("inf")])
    with pytest.raises(ReadingError, match="2 of 2 values"):
        require_finite([("x", both)], "file")
    require_finite([("x", torch.full((5,), 3e38)), ("h", torch.full((5,), 6e4).half())], "file")


def test_values_are_tested_a_part_at_a_time() -> None:
    """The bad ones are in the first and the last of three parts; complex ones are refused."""
    many = torch.zeros(2 * AT_ONCE + 1)
    many[[0, -1]] = float("nan")
    with pytest.raises(ReadingError, match=r"2 of 2,097,153 values of 'x'"):
        require_finite([("x", many)], "file")
    with pytest.raises(ReadingError, match="the values of 'x' are complex"):
        require_finite([("x", torch.zeros(3, dtype=torch.complex64))], "file")
    require_finite([("x", torch.ones(3).to(torch.float8_e4m3fn))], "file")


@pytest.mark.parametrize("read", [read_tensors, map_tensors])
def test_a_header_that_promises_what_is_not_there(tmp_path: Path, read: Any) -> None:
    path = tmp_path / "a.safetensors"
    header = json.dumps({"x": {"dtype": "F32", "shape": [2**38], "data_offsets": [0, 2**40]}}).encode()
    for content in (
        len(header).to_bytes(8, "little") + header,
        (2**40).to_bytes(8, "little") + b"{}",
        b"",
        b"x",
    ):
        path.write_bytes(content)
        with pytest.raises(ReadingError, match="not a complete safetensors file"):
            read(path)
