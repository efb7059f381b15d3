"""Schemas of Arrow whose flat buffers name the same bytes again and again: pyarrow copies them each time."""

import base64
import io
import re
import struct
from pathlib import Path
from typing import Any

import pytest

from dear.data.settings import DataSettings
from dear.data.sources.arrow_messages import _Buffer, require_unshared
from dear.errors import DearError
from dear.limits import LimitError
from dear.reading.files import ReadingError
from tests.unit.data.photos import load

pyarrow: Any = pytest.importorskip("pyarrow")
parquet: Any = pytest.importorskip("pyarrow.parquet")

IMAGE = pyarrow.struct([("bytes", pyarrow.binary()), ("path", pyarrow.string())])
TIMES = [("a", pyarrow.timestamp("ms", "Europe/Berlin")), ("b", pyarrow.list_(pyarrow.float32()))]
NOTED = pyarrow.field("a", pyarrow.int8(), metadata={"k": "v" * 9})
GOOD = [
    pyarrow.schema([("image", IMAGE)]),
    pyarrow.schema([(f"c{number}", pyarrow.int64()) for number in range(4999)]),
    pyarrow.schema(TIMES),
    pyarrow.schema([NOTED], metadata={"x": "y" * 100_000}),
]


def check(message: bytes) -> None:
    content = io.BytesIO(message)
    require_unshared(content.read(8), content, "it")


@pytest.mark.parametrize("number", range(len(GOOD)))
def test_good_schemas(number: int) -> None:
    check(GOOD[number].serialize().to_pybytes())
    older = pyarrow.BufferOutputStream()  # without the continuation of messages since 0.15
    options = pyarrow.ipc.IpcWriteOptions(use_legacy_format=True)
    pyarrow.ipc.new_stream(older, GOOD[number], options=options).close()
    check(older.getvalue().to_pybytes())


def sharing(names: int = 200, longest: int = 10_000) -> bytes:
    """The message of a schema whose fields are all its first one, of a long name."""
    fields = [("a" * longest, pyarrow.int64()), *((f"b{n}", pyarrow.int64()) for n in range(names))]
    message = bytearray(pyarrow.schema(fields).serialize().to_pybytes())
    buffer = _Buffer(bytes(message[8:]))
    schema = buffer.target(buffer.field(buffer.target(0), 2))
    vector = buffer.target(buffer.field(schema, 1)) + 4
    target = buffer.target(vector)
    for number in range(names + 1):
        at = vector + 4 * number
        struct.pack_into("<i", message, 8 + at, target - at)
    return bytes(message)


def test_fields_that_are_one(tmp_path: Path, settings: DataSettings) -> None:
    """10,000 times a name of a megabyte ended the process, from a file of a megabyte."""
    message = sharing()
    forward = pyarrow.ipc.read_schema(pyarrow.py_buffer(message)).names if len(message) < 10**5 else []
    assert all(name == "a" * 10_000 for name in forward)
    with pytest.raises(ReadingError, match="its schema names the same bytes again and again"):
        check(message)
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "x.arrow").write_bytes(message + b"\xff\xff\xff\xff\0\0\0\0")
    (folder / "state.json").write_text('{"_data_files": [{"filename": "x.arrow"}]}')
    (folder / "dataset_info.json").write_text("{}")
    with pytest.raises(DearError, match="again and again"):
        load(folder, settings)


@pytest.mark.parametrize("twice", [False, True])
def test_fields_that_are_one_in_parquet(twice: bool, tmp_path: Path, settings: DataSettings) -> None:
    file = tmp_path / "mine/data/test-00000-of-00001.parquet"
    file.parent.mkdir(parents=True)
    table = pyarrow.table({"label": [0]}).replace_schema_metadata({"ARROW:schem2": "a" * 20_000})
    parquet.write_table(table, file)
    content = file.read_bytes()
    (stored,) = re.findall(rb"ARROW:schema\x18[\x80-\xff]*[\x00-\x7f]([A-Za-z0-9+/=]+)", content)
    forged = sharing(10, 1000).ljust(len(base64.b64decode(stored)), b"\0")
    content = content.replace(stored, base64.b64encode(forged))
    file.write_bytes(content.replace(b"ARROW:schem2", b"ARROW:schema") if twice else content)
    reason = "is not where Arrow writes it" if twice else "again and again"
    with pytest.raises(DearError, match=reason):
        load(Path(f"hf:{tmp_path}/mine"), settings)


def test_other_schemas_that_are_refused() -> None:
    with pytest.raises(LimitError, match="columns"):
        check(
            pyarrow.schema([(str(number), pyarrow.int8()) for number in range(5001)]).serialize().to_pybytes()
        )
    union = pyarrow.union([pyarrow.field("a", pyarrow.int8())], mode="sparse")
    with pytest.raises(ReadingError, match="a column of unions"):
        check(pyarrow.schema([("a", union)]).serialize().to_pybytes())
    good = GOOD[0].serialize().to_pybytes()
    for at in range(8, len(good)):
        for value in (0, 0x7F, 0xFF):
            try:
                check(good[:at] + bytes([value]) + good[at + 1 :])
            except (ReadingError, LimitError):
                continue
