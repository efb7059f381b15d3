"""Pickles of weights: refused if a step takes more time or memory than its bytes."""

import io
import struct
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from dear.backbone.weights import read_weights
from dear.limits import LimitError
from dear.reading.files import ReadingError
from dear.reading.tensors import require_plain_torch_file

CALLS = "its pickle calls what weights have no need of"
KEYS = "its pickle has keys that are neither texts nor numbers"
ORDERED_DICT = b"ccollections\nOrderedDict\n"


def text(content: bytes) -> bytes:
    return b"X" + struct.pack("<I", len(content)) + content


def in_zip(pickle: bytes, name: str = "a/data.pkl", *, before: bytes = b"") -> io.BytesIO:
    """An archive as torch writes it."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr(name, pickle)
        archive.writestr("a/version", "3\n")
    return io.BytesIO(before + file.getvalue())


def alone(pickle: bytes) -> io.BytesIO:
    """The start of a file of torch before 1.6."""
    return io.BytesIO(pickle)


def long_number(value: int) -> bytes:
    content = value.to_bytes(16, "little")
    return b"\x8a" + bytes([len(content)]) + content


@pytest.mark.parametrize("form", [in_zip, alone])
@pytest.mark.parametrize(
    ("steps", "reason"),
    [
        pytest.param(ORDERED_DICT + b"q\x02}q\x00](h\x02h\x00\x85Re", CALLS, id="copy of a dict"),
        pytest.param(b"ccollections\nCounter\n}q\x00h\x00\x85R", CALLS, id="count of a known dict"),
        pytest.param(b"ccollections\nCounter\n]\x85R", CALLS, id="count of a list"),
        pytest.param(b"ctorch\nSize\n(" + b"K\x01" * 100 + b"t\x85R", CALLS, id="size of many dimensions"),
        pytest.param(b"ctorch\nSize\n]q\x00h\x00\x85R", CALLS, id="size of a known list"),
        pytest.param(b"ctorch.storage\nUntypedStorage\nK\x07\x85R", CALLS, id="storage without a file"),
        pytest.param(b"])R", CALLS, id="list that is called"),
        pytest.param(b"}}b", CALLS, id="attributes of a dict"),
        pytest.param(ORDERED_DICT + b")R}q\x00h\x00b", CALLS, id="known attributes"),
        pytest.param(b"]Q", CALLS, id="list as a storage"),
        pytest.param(b"}(K\x01K\x02\x86Nu", KEYS, id="tuple as a key"),
        pytest.param(b"}" + long_number(2**70 * (2**7 - 1)) + b"Ns", KEYS, id="long number as a key"),
        pytest.param(b"N2", "the step DUP", id="twice"),
        pytest.param(b"(i_codecs\nencode\n", "the step INST", id="instance"),
        pytest.param(b"\x8c\x07_codecs\x8c\x06encode\x93", "SHORT_BINUNICODE", id="name from the stack"),
        pytest.param(b"(N\x85\x86", "its pickle is damaged", id="tuple over a mark"),
    ],
)
def test_steps_that_multiply_are_refused(
    form: Callable[[bytes], io.BytesIO], steps: bytes, reason: str
) -> None:
    with pytest.raises(ReadingError, match=reason):
        require_plain_torch_file(form(b"\x80\x02" + steps + b"."), "it")


def test_the_pickle_is_the_one_that_torch_reads() -> None:
    """torch takes DATA.PKL for data.pkl, and reads another list of members if something is before them."""
    codec = b"\x80\x02c_codecs\nencode\n."
    for name in ("a/data.pkl", "a/DATA.PKL"):
        with pytest.raises(ReadingError, match=r"its pickle names '_codecs encode'"):
            require_plain_torch_file(in_zip(codec, name), "it")
    with pytest.raises(ReadingError, match="its first member is not at its start"):
        require_plain_torch_file(in_zip(b"\x80\x02}.", before=b"PK"), "it")


def test_a_tar_is_refused_before_torch_reads_its_headers() -> None:
    header = tarfile.TarInfo("x").tobuf(tarfile.USTAR_FORMAT)
    name = b"\x80\x02N.N.N.N.N."
    start = bytearray(name.ljust(100, b"\0") + header[100:])
    start[148:156] = b" " * 8
    start[148:156] = b"%06o\0 " % sum(start)
    with pytest.raises(ReadingError, match="it is a tar"):
        require_plain_torch_file(io.BytesIO(bytes(start)), "it")


@pytest.mark.parametrize("form", [in_zip, alone])
def test_a_pickle_has_a_bounded_length(form: Callable[[bytes], io.BytesIO]) -> None:
    with pytest.raises(LimitError, match="1,001,000 steps of the pickle"):
        require_plain_torch_file(form(b"\x80\x02](" + b"}" * 1_001_000 + b"e."), "it")
    with pytest.raises(LimitError, match="bytes of the pickle"):
        require_plain_torch_file(alone(b"\x80\x02X\xff\xff\xff\x7f"), "it")


@pytest.mark.parametrize("new", [True, False])
@pytest.mark.parametrize("protocol", [2, 3])
def test_states_of_a_training_are_read(new: bool, protocol: int) -> None:
    layer = torch.nn.Linear(3, 5)
    sgd = torch.optim.SGD(layer.parameters(), momentum=0.9)
    layer(torch.ones(1, 3)).sum().backward()
    sgd.step()
    schedule = torch.optim.lr_scheduler.MultiStepLR(sgd, [3, 7])
    values: dict[str, Any] = {
        "state": layer.state_dict(), "parameters": dict(layer.named_parameters()), "tied": [layer.weight] * 2,
        "optimizer": sgd.state_dict(), "schedule": schedule.state_dict(), "large": 2**70,
    }  # fmt: skip
    file = io.BytesIO()
    torch.save(values, file, pickle_protocol=protocol, _use_new_zipfile_serialization=new)
    require_plain_torch_file(file, "it")
    file.seek(0)
    assert torch.load(file, weights_only=True).keys() == values.keys()


def test_types_without_a_storage_of_their_own_are_read() -> None:
    file = io.BytesIO()
    torch.save([torch.ones(3).to(kind) for kind in (torch.float8_e4m3fn, torch.uint16)], file)
    require_plain_torch_file(file, "it")


def test_a_newer_protocol_is_named() -> None:
    file = io.BytesIO()
    torch.save({"x": torch.ones(3)}, file, pickle_protocol=4)
    with pytest.raises(ReadingError, match="of protocol 4, which torch does not read"):
        require_plain_torch_file(file, "it")


@pytest.mark.parametrize("name", [b"get", b"values", b"items", b"keys"])
def test_attributes_do_not_stand_for_methods(name: bytes, tmp_path: Path) -> None:
    path = tmp_path / "weights.pt"
    steps = b"\x80\x02" + ORDERED_DICT + b")R}" + text(name) + b"K\x01sb."
    path.write_bytes(in_zip(steps).getvalue())
    assert read_weights(path) == {}
