"""Files of torch.save: refused if they call more than tensors need, or take far more than their bytes."""

import io
import itertools
import struct
import sys
import zipfile
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch

from dear.backbone.weights import read_weights
from dear.errors import DearError
from dear.limits import LimitError
from dear.reading.files import ReadingError
from dear.reading.pickles import read_pickled

CALLS = "its pickle calls what weights have no need of"
SETS = "its pickle sets attributes of what weights have no need of"
ORDERED_DICT = b"ccollections\nOrderedDict\n"
linux = pytest.mark.skipif(sys.platform != "linux", reason="memory is bounded on Linux only")


def read(content: bytes) -> Any:
    return read_pickled(io.BytesIO(content), "it", len(content))


def text(content: bytes) -> bytes:
    return b"X" + struct.pack("<I", len(content)) + content


def in_zip(steps: bytes, name: str = "a/data.pkl") -> bytes:
    """An archive as torch writes it."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr(name, b"\x80\x02" + steps + b".")
        archive.writestr("a/version", "3\n")
    return file.getvalue()


def saved(value: Any, **options: Any) -> bytes:
    file = io.BytesIO()
    torch.save(value, file, **options)
    return file.getvalue()


@pytest.mark.parametrize(
    ("steps", "reason"),
    [
        pytest.param(b"ctorch\nFloatStorage\nJ\x00\x00\x00\x7f\x85R", CALLS, id="values nobody wrote"),
        pytest.param(b"ctorch.storage\nUntypedStorage\nK\x07\x85R", CALLS, id="bytes nobody wrote"),
        pytest.param(b"(ctorch.storage\nUntypedStorage\nq\x00th\x00K\x07\x85R", CALLS, id="from the memo"),
        pytest.param(b"ctorch\nSize\n\x85K\x07\x85R", CALLS, id="a tuple that is called"),
        pytest.param(b"K\x01K\x01\x85R", CALLS, id="a number that is called"),
        pytest.param(b"}}b", SETS, id="attributes of a dict"),
        pytest.param(ORDERED_DICT + b"}b", SETS, id="attributes of a type"),
        pytest.param(b"N2", "the step DUP", id="twice"),
        pytest.param(b"(i_codecs\nencode\n", "the step INST", id="instance"),
        pytest.param(b"\x8c\x07_codecs\x8c\x06encode\x93", "SHORT_BINUNICODE", id="name from the stack"),
        pytest.param(b"c_codecs\nencode\n", "its pickle names '_codecs encode'", id="codec"),
        pytest.param(b"tt", "it is no checkpoint of tensors only", id="damaged"),
    ],
)
def test_steps_that_weights_have_no_need_of(steps: bytes, reason: str) -> None:
    with pytest.raises(ReadingError, match=reason):
        read(in_zip(steps))


@linux
@pytest.mark.parametrize(
    ("steps", "reason"),
    [
        pytest.param(
            b"]q\x00(" + b"K\x01" * 100_000 + b"ectorch\nSize\nq\x01]q\x02(" + b"h\x01]h\x00aR" * 8000 + b"e",
            "takes more than 512 MiB of memory", id="copies of a size",
        ),
        pytest.param(
            b"}q\x00(" + b"".join(b"J" + struct.pack("<i", n) + b"N" for n in range(10_000)) + b"u"
            + ORDERED_DICT + b"q\x01](" + b"h\x01]h\x00aR" * 3000 + b"e",
            r"takes more than (512 MiB|5 s)", id="copies of a dict",
        ),
    ],
)  # fmt: skip
def test_steps_that_multiply(steps: bytes, reason: str) -> None:
    """256 kB took 6,107 MiB, and 80 kB minutes."""
    with pytest.raises(LimitError, match=reason):
        read(in_zip(steps))


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has these processes")
def test_steps_without_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Numbers whose places in a dict are all taken took 14.5 s from 525 kB."""
    monkeypatch.setattr("dear.reading.pickles.SECONDS", 1)
    with pytest.raises(LimitError, match="it takes more than 1 s to read"):
        read(in_zip(b"](" + b"}" * 8_000_000 + b"e"))


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has these processes")
def test_the_list_of_an_archive_is_read_there_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a million empty members."""
    monkeypatch.setattr("dear.reading.pickles.SECONDS", 1)
    monkeypatch.setattr(zipfile.ZipFile, "infolist", lambda _: max(itertools.repeat(0)))
    torch.save({"x": torch.ones(3)}, tmp_path / "x.pt")
    with pytest.raises(LimitError, match=r"x\.pt: it takes more than 1 s to read"):
        read_weights(tmp_path / "x.pt")


def test_the_pickle_is_the_one_that_torch_reads() -> None:
    """torch takes DATA.PKL for data.pkl."""
    for name in ("a/data.pkl", "a/DATA.PKL"):
        with pytest.raises(ReadingError, match=r"its pickle names '_codecs encode'"):
            read(in_zip(b"c_codecs\nencode\n", name))


@pytest.mark.parametrize("protocol", [2, 3])
def test_states_of_a_training_are_read(protocol: int) -> None:
    layer = torch.nn.Linear(3, 5)
    optimizers = torch.optim.SGD(layer.parameters(), momentum=0.9), torch.optim.AdamW(layer.parameters())
    layer(torch.ones(1, 3)).sum().backward()
    for optimizer in optimizers:
        optimizer.step()
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizers[0], [3, 7])
    values: dict[str, Any] = {
        "state": layer.state_dict(), "parameters": dict(layer.named_parameters()), "tied": [layer.weight] * 2,
        "optimizers": [optimizer.state_dict() for optimizer in optimizers],
        "schedule": schedule.state_dict(), "large": 2**70, "nested": ((1, (2, 3)), ()),
    }  # fmt: skip
    content = read(saved(values, pickle_protocol=protocol))
    assert content.keys() == values.keys()
    assert torch.equal(content["state"]["weight"], layer.weight)
    assert content["schedule"] == values["schedule"]


def test_what_tensors_need_is_called(tmp_path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2)).to(torch.bfloat16)
    kinds = (
        torch.float16, torch.float64, torch.int8, torch.uint8, torch.int64, torch.bool, torch.complex64,
        torch.float8_e4m3fn, torch.uint16,
    )  # fmt: skip
    values = {
        "state": model.state_dict(), "parameter": model[0].weight, "size": torch.Size([2, 3]),
        "dtype": torch.bfloat16, "device": torch.device("cpu"), "part": torch.ones(7)[2:5],
        **{str(kind): torch.ones(2).to(kind) for kind in kinds}, "epoch": 3, "name": "x", "rate": 0.5,
    }  # fmt: skip
    (tmp_path / "x.pt").write_bytes(saved(values))
    content = read_pickled(tmp_path / "x.pt", "it", 10**4)
    assert content.keys() == values.keys()
    assert (content["size"], content["rate"]) == (torch.Size([2, 3]), 0.5)
    assert torch.equal(content["part"], torch.ones(3))
    for value, name in (
        (bytearray(b"x"), "builtin"), ({1, 2}, "builtin"), (b"x", "_codecs"),
        (timedelta(1), "timedelta"), (3j, "complex"), (torch.ones(2).to_sparse(), "_rebuild_sparse_tensor"),
    ):  # fmt: skip
        with pytest.raises(ReadingError, match=f"its pickle names .*{name}"):
            read(saved([value]))


@pytest.mark.parametrize("options", [{"_use_new_zipfile_serialization": False}, {"pickle_protocol": 4}])
def test_other_forms_are_refused(options: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "old weights.pt"
    path.write_bytes(saved({"x": torch.ones(3)}, **options))
    reason = "torch before 1.6" if "pickle_protocol" not in options else "which weights have no need of|step"
    with pytest.raises(DearError, match=reason) as caught:
        read_weights(path)
    assert "\n" not in str(caught.value)


def test_archives_that_are_damaged() -> None:
    good = saved({"x": torch.ones(5)})
    for at in range(0, len(good), 17):
        try:
            content = read(good[:at] + bytes([good[at] ^ 0xFF]) + good[at + 1 :])
        except DearError:
            continue
        assert content.keys() == {"x"}


@pytest.mark.parametrize("name", [b"get", b"values", b"items", b"keys"])
def test_attributes_do_not_stand_for_methods(name: bytes, tmp_path: Path) -> None:
    path = tmp_path / "weights.pt"
    path.write_bytes(in_zip(ORDERED_DICT + b")R}" + text(name) + b"K\x01sb"))
    assert read_weights(path) == {}
