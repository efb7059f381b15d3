"""MATLAB files that claim more than they hold: they take little memory, and do not end the process."""

import struct
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.io import savemat

from dear.data.loading import load_dataset
from dear.data.settings import DataSettings
from dear.data.sources import benchmarks
from dear.data.sources.listing import Row
from dear.data.sources.readers import Source, SourceRows, _matlab, cars, flowers
from dear.errors import DataError, DearError
from dear.limits import LimitError

NAMED = [("fname", object), ("class", object)]


def element(kind: int, data: bytes) -> bytes:
    """A part of a file: its type, length and content."""
    return struct.pack("<II", kind, len(data)) + data + bytes(-len(data) % 8)


def matrix(number: int, count: int, content: bytes, name: bytes = b"labels") -> bytes:
    """A column of ``count`` values of a class, whose content is written as it is."""
    flags, sides = struct.pack("<II", number, 0), struct.pack("<ii", count, 1)
    return element(14, element(6, flags) + element(5, sides) + element(1, name) + content)


def fields(name: bytes) -> bytes:
    """The names of a record's fields, of which there is one."""
    return element(5, struct.pack("<I", len(name))) + element(1, name)


def read(folder: Path) -> Any:
    return _matlab(Source("cars", folder, folder, ("a",), None, ()), "x.mat", "labels", list)


CELLS = matrix(1, 2**30, b"")
NUMBER = element(9, struct.pack("<d", 1.0))


@pytest.mark.skipif(sys.platform != "linux", reason="memory is bounded on Linux only")
@pytest.mark.parametrize("variable", [
    CELLS,
    matrix(2, 2**27, fields(b"a" * 32)),
    matrix(6, 2**30, NUMBER),
    matrix(2, 1, fields(b"ab") + CELLS),
    matrix(2, 1, fields(b"ab") + matrix(6, 2**30, NUMBER)),
    matrix(2, 3, fields(b"ab") + matrix(6, 1, NUMBER)),
    # scipy reads the next field where this one's number ends: the cells
    matrix(2, 2, fields(b"ab") + matrix(6, 1, NUMBER + CELLS) * 2),
    matrix(2, 1, fields(b"ab") + matrix(6, 1, NUMBER))[:-8],
])  # fmt: skip
def test_what_claims_more_than_it_has(variable: bytes, tmp_path: Path) -> None:
    """scipy makes an array of what a few bytes claim: 8 GB of 184 bytes."""
    (tmp_path / "x.mat").write_bytes(b"MATLAB 5.0".ljust(124) + struct.pack("<H", 0x100) + b"IM" + variable)
    with pytest.raises(DearError, match=r"it takes more than .* to read|x\.mat cannot be read") as caught:
        read(tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("packed", [False, True])
def test_labels_and_records_are_read(packed: bool, tmp_path: Path) -> None:
    path = tmp_path / "x.mat"
    for options in ({"do_compression": packed}, {"format": "4"}):
        savemat(path, {"labels": np.arange(7)}, **options)
        assert read(tmp_path) == [*range(7)]
    records = np.array([[("a.jpg", 3), ("", 1.5), ("bb.jpg", [])]], dtype=NAMED)
    savemat(path, {"labels": records}, do_compression=packed)
    assert [record["fname"].tolist() for record in read(tmp_path)] == [["a.jpg"], [], ["bb.jpg"]]


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has these processes")
def test_time_without_an_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    savemat(tmp_path / "x.mat", {"labels": np.arange(7)})
    monkeypatch.setattr("dear.data.sources.readers.MATLAB_SECONDS", 1)

    def forever(*_: object, **__: object) -> None:
        while True:
            pass

    monkeypatch.setattr("scipy.io.loadmat", forever)
    with pytest.raises(DearError, match=r"x\.mat: it takes more than 1 s to read"):
        read(tmp_path)


@pytest.mark.parametrize(
    "label", [np.inf, np.nan, 1 + 2j, np.array([1, 2]), {"a": 1}, "x" * 5000, 4.0, 1.5, 1e300]
)
def test_labels_that_are_no_numbers(label: Any, tmp_path: Path) -> None:
    """In either data set whose labels are MATLAB's: those of one class are 1."""
    source = Source("cars", tmp_path, tmp_path, ("a",), None, ())
    (tmp_path / "devkit").mkdir()
    cell = np.empty(1, dtype=object)
    cell[0] = label
    savemat(tmp_path / "imagelabels.mat", {"labels": cell})
    savemat(tmp_path / "devkit/cars_train_annos.mat", {"annotations": np.array([("x", label)], dtype=NAMED)})
    for reader in (flowers, cars):
        with pytest.raises(DataError, match=r"is not a label|is out of range|are not records") as caught:
            reader(source)
        assert len(str(caught.value)) < 200


def test_names_and_labels_within_many_cells(tmp_path: Path) -> None:
    """Pickle follows fewer levels."""
    source, inner = Source("cars", tmp_path, tmp_path, ("a",), None, ()), matrix(6, 1, NUMBER, b"")
    for _ in range(400):
        inner = matrix(1, 1, inner, b"")
    names = element(5, struct.pack("<I", 8)) + element(1, b"fname\0\0\0class\0\0\0")
    start = b"MATLAB 5.0".ljust(124) + struct.pack("<H", 0x100) + b"IM"
    (tmp_path / "devkit").mkdir()
    (tmp_path / "imagelabels.mat").write_bytes(start + matrix(1, 1, inner))
    (tmp_path / "devkit/cars_train_annos.mat").write_bytes(
        start + matrix(2, 1, names + inner + inner, b"annotations")
    )
    for reader in (flowers, cars):
        with pytest.raises(DataError, match=r"is not a label|are not records") as caught:
            reader(source)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["x" * 5000, "\ud800"])
def test_names_that_no_file_has(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "stanford_cars").mkdir()
    rows = SourceRows(("a",), ("a",), {"all": (Row(name, 0),)})
    monkeypatch.setattr(benchmarks, "READERS", {"cars": lambda _: rows})
    with pytest.raises(DataError, match=r"StanfordCars: the path has 5,000 characters|a character that no"):
        load_dataset("StanfordCars", DataSettings(root=tmp_path, cache=tmp_path))


def test_the_rows_of_a_benchmark_are_few(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of all lists together: labels of one value pack a thousandfold, and each becomes a row."""
    settings = DataSettings(root=tmp_path, cache=tmp_path)
    monkeypatch.setenv("DEAR_LIMIT_TABLE_ROWS", "5")
    (tmp_path / "oxford_flowers").mkdir()
    savemat(tmp_path / "oxford_flowers/imagelabels.mat", {"labels": np.ones((1, 6), np.uint8)})
    with pytest.raises(LimitError, match=r"imagelabels\.mat: 6 rows of a table, above the limit of 5"):
        load_dataset("OxfordFlowers", settings)
    (tmp_path / "oxford_pets/annotations").mkdir(parents=True)
    for part in ("trainval", "test"):
        (tmp_path / f"oxford_pets/annotations/{part}.txt").write_text("a 1\n" * 3)
    with pytest.raises(LimitError, match=r"test\.txt: 6 rows of a table, above the limit of 5"):
        load_dataset("OxfordPets", settings)
