"""Tensors and arrays from files: whole, of numbers."""

import io
import zipfile
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from dear.reading.files import ReadingError
from dear.reading.tensors import (
    AT_ONCE,
    map_array,
    map_tensors,
    read_tensors,
    require_finite,
    require_plain_torch_file,
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


def test_arrays(tmp_path: Path) -> None:
    path = tmp_path / "a.npy"
    array = np.arange(105, dtype=np.uint8).reshape(3, 5, 7)
    np.save(path, array)
    assert np.array_equal(map_array(path, np.uint8), array)
    with pytest.raises(ReadingError, match="not an array of float32"):
        map_array(path, np.float32)
    whole = path.read_bytes()
    for content in (b"", whole[:-1], whole[:60], whole.replace(b"(3, 5, 7)", b"((((((((("), b"\0" * 99):
        path.write_bytes(content)
        with pytest.raises(ReadingError, match=r"not a complete \.npy file"):
            map_array(path, np.uint8)


def test_a_file_with_more_than_its_header_says_is_not_mapped(tmp_path: Path) -> None:
    """A terabyte without blocks would be mapped before it is refused."""
    path = tmp_path / "a.safetensors"
    save_file({"x": torch.arange(21.0)}, path)
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size + 2**20)
    with pytest.raises(ReadingError, match="its size is not that of its header"):
        map_tensors(path)
    path.write_bytes((2**40).to_bytes(8, "little") + b"{}")
    with pytest.raises(ReadingError, match="its header is too long"):
        map_tensors(path)


def saved(value: Any, *, new: bool = True) -> io.BytesIO:
    file = io.BytesIO()
    torch.save(value, file, _use_new_zipfile_serialization=new)
    return file


@pytest.mark.parametrize("new", [True, False])
def test_a_torch_file_has_no_tuples_whose_hash_takes_forever(new: bool) -> None:
    layer = torch.nn.Linear(3, 3)
    optimizer = torch.optim.AdamW(layer.parameters())
    layer(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    states = {"layer": layer.state_dict(), "optimizer": optimizer.state_dict(), "nested": ((1, (2, 3)), ())}
    require_plain_torch_file(saved(states, new=new), "it")
    pairs: Any = ()
    for _ in range(36):  # 2^36 parts in less than a kilobyte
        pairs = (pairs, pairs)
    wide: Any = (1,) * 101  # and 101 x 100 parts in two levels
    for value in ([pairs], [(wide,) * 100]):
        with pytest.raises(ReadingError, match="it has a tuple of more than 10,000 parts"):
            require_plain_torch_file(saved(value, new=new), "it")


@pytest.mark.parametrize("new", [True, False])
def test_a_torch_file_calls_what_tensors_need_alone(new: bool) -> None:
    """torch's reader allows more: 1,191 bytes of nested codecs took 3.6 GB, a text in Punycode minutes."""
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2)).to(torch.bfloat16)
    kinds = (torch.float16, torch.float64, torch.int8, torch.uint8, torch.int64, torch.bool, torch.complex64)
    values = {
        "state": model.state_dict(), "parameter": model[0].weight, "size": torch.Size([2, 3]),
        "dtype": torch.bfloat16, "device": torch.device("cpu"), "part": torch.ones(7)[2:5],
        **{str(kind): torch.ones(2).to(kind) for kind in kinds}, "epoch": 3, "name": "x", "rate": 0.5,
    }  # fmt: skip
    file = saved(values, new=new)
    require_plain_torch_file(file, "it")
    file.seek(0)
    assert torch.load(file, weights_only=True).keys() == values.keys()
    for value, name in (
        (bytearray(b"x"), "builtin"), ({1, 2}, "builtin"), (b"x", "_codecs"),
        (timedelta(1), "timedelta"), (3j, "complex"), (torch.ones(2).to_sparse(), "_rebuild_sparse_tensor"),
    ):  # fmt: skip
        with pytest.raises(ReadingError, match=f"its pickle names .*{name}"):
            require_plain_torch_file(saved([value], new=new), "it")


@pytest.mark.parametrize(
    "pickled",
    [
        b"\x80\x02ctorch\nFloatStorage\nJ\x00\x00\x00\x7f\x85R.",  # FloatStorage(2**31)
        b"\x80\x02K\x01K\x01\x85R.",
    ],
)
def test_a_torch_file_calls_no_types(pickled: bytes) -> None:
    with pytest.raises(ReadingError, match="its pickle calls what weights have no need of"):
        require_plain_torch_file(io.BytesIO(pickled), "it")


def test_a_torch_file_is_not_compressed_and_can_be_listed() -> None:
    plain = saved({"x": torch.ones(5)})
    require_plain_torch_file(plain, "it")
    packed, members = io.BytesIO(), zipfile.ZipFile(plain)
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in members.namelist():
            archive.writestr(name, members.read(name))
    with pytest.raises(ReadingError, match="it is compressed"):
        require_plain_torch_file(packed, "it")
    newer = bytearray(plain.getvalue())
    newer[newer.index(b"PK\x01\x02") + 6] = 99  # the first entry needs version 9.9 to unpack
    with pytest.raises(ReadingError, match="its members cannot be listed"):
        require_plain_torch_file(io.BytesIO(newer), "it")
    with pytest.raises(ReadingError, match="its pickle is damaged"):
        require_plain_torch_file(io.BytesIO(b"\x80\x02tt."), "it")
