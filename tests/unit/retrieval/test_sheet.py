"""Contact sheets hold the query and the pictures where they should be."""

from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import pytest
from PIL import Image

from dear.errors import OutputError
from dear.retrieval.results import Hit
from dear.retrieval.sheet import GAP, LINE, SIDE, contact_sheet, save_sheet
from tests.unit.retrieval.solid import SHADES, gallery


def hit(folder: Path, name: str, score: float) -> Hit:
    return Hit(name, score, {}, sha256=sha256((folder / name).read_bytes()).hexdigest())


def test_pictures_in_rows(tmp_path: Path) -> None:
    folder = gallery(tmp_path / "images")
    hits = [hit(folder, "green.png", 0.9), hit(folder, "blue.png", 0.8), Hit("gone.png", 0.7, {})]
    rows = {"by color": hits, "by shape": hits[1:]}
    save_sheet(contact_sheet(folder / "red.png", "red.png", rows, folder), tmp_path / "out" / "sheet.png")
    with Image.open(tmp_path / "out" / "sheet.png") as sheet:
        head, cell = LINE + GAP, SIDE + 2 * LINE + GAP
        top = head + SIDE + GAP
        assert sheet.size == (GAP + 3 * (SIDE + GAP), top + 2 * (head + cell))
        middle = SIDE // 2

        def at(row: int, column: int) -> object:
            return sheet.getpixel(
                (GAP + column * (SIDE + GAP) + middle, top + row * (head + cell) + head + middle)
            )

        assert sheet.getpixel((GAP + middle, head + middle)) == SHADES["red"]
        assert [at(0, 0), at(0, 1), at(1, 0)] == [SHADES["green"], SHADES["blue"], SHADES["blue"]]
        assert at(0, 2) == at(1, 1) == (213, 217, 222)  # a picture that is gone


def test_a_picture_that_the_index_does_not_know_is_not_shown(tmp_path: Path) -> None:
    """It was changed since it was indexed."""
    folder = gallery(tmp_path / "images")
    known = hit(folder, "green.png", 0.9)
    rows = {"by color": [known, replace(known, path="blue.png")]}
    sheet = contact_sheet(None, "red", rows, folder)
    y = 2 * (LINE + GAP) + SIDE // 2
    across = [GAP + SIDE // 2, GAP + SIDE // 2 + SIDE + GAP]
    assert [sheet.getpixel((x, y)) for x in across] == [SHADES["green"], (213, 217, 222)]


@pytest.mark.parametrize("place", [".", "/", "", "file/sheet.png", "folder"])
def test_places_that_are_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    with pytest.raises(OutputError, match="contact sheet"):
        save_sheet(Image.new("RGB", (3, 5)), Path(place))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder"]
