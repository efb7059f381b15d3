"""MATLAB files that claim more than they hold: nothing is allocated for it."""

import struct
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from scipy.io import savemat

from dear.data.sources.matlab import require_plain
from dear.reading.files import ReadingError

NAMED = [("fname", object), ("class", object)]


def element(kind: int, data: bytes) -> bytes:
    """A part of a file: its type, length and content."""
    return struct.pack("<II", kind, len(data)) + data + bytes(-len(data) % 8)


def matrix(number: int, count: int, content: bytes) -> bytes:
    """A column of ``count`` values of a class, whose content is written as it is."""
    flags, sides = struct.pack("<II", number, 0), struct.pack("<ii", count, 1)
    return element(14, element(6, flags) + element(5, sides) + element(1, b"labels") + content)


def fields(name: bytes) -> bytes:
    """The names of a record's fields, of which there is one."""
    return element(5, struct.pack("<I", len(name))) + element(1, name)


CELLS = matrix(1, 2**30, b"")
NUMBER = element(9, struct.pack("<d", 1.0))


@pytest.mark.parametrize(
    ("variable", "message"),
    [
        (CELLS, "of the class cell"),
        (matrix(2, 2**27, fields(b"a" * 32)), "more values than bytes"),
        (matrix(6, 2**30, NUMBER), "more values than bytes"),
        (matrix(2, 1, fields(b"ab") + CELLS), "more than numbers and texts"),
        (matrix(2, 1, fields(b"ab") + matrix(6, 2**30, NUMBER)), "a field of more values than bytes"),
        (matrix(2, 3, fields(b"ab") + matrix(6, 1, NUMBER)), "do not have the fields"),
        # scipy reads the next field where this one's number ends: the cells
        (matrix(2, 2, fields(b"ab") + matrix(6, 1, NUMBER + CELLS) * 2), "more than numbers and texts"),
        (matrix(2, 1, fields(b"ab") + matrix(6, 1, NUMBER))[:-8], "damaged"),
    ],
)
def test_what_claims_more_than_it_has(variable: bytes, message: str) -> None:
    """scipy makes an array of what a few bytes claim: 8 GB of 184 bytes."""
    content = b"MATLAB 5.0".ljust(124) + struct.pack("<H", 0x100) + b"IM" + variable
    tracemalloc.start()
    try:
        with pytest.raises(ReadingError, match=message):
            require_plain(content, Path("labels.mat"))
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("packed", [False, True])
def test_labels_and_records_are_read(packed: bool, tmp_path: Path) -> None:
    path = tmp_path / "x.mat"
    records = np.array([[("a.jpg", 3), ("", 1.5), ("bb.jpg", [])]], dtype=NAMED)
    for content in (np.arange(7), np.arange(7.0) * 1j, records):
        savemat(path, {"labels": content}, do_compression=packed)
        require_plain(path.read_bytes(), path)
    savemat(path, {"labels": np.arange(7)}, format="4")
    require_plain(path.read_bytes(), path)
    savemat(path, {"labels": np.array([(np.array(["a", 1], dtype=object), 1)], dtype=NAMED)})
    with pytest.raises(ReadingError, match="more than numbers and texts"):
        require_plain(path.read_bytes(), path)
