"""Contact sheets hold the query and the pictures where they should be."""

from hashlib import sha256
from pathlib import Path

from PIL import Image

from dear.retrieval.results import Hit
from dear.retrieval.sheet import GAP, SIDE, contact_sheet, save_sheet
from tests.unit.retrieval.solid import SHADES, gallery


def test_pictures_in_rows(tmp_path: Path) -> None:
    folder = gallery(tmp_path / "images")
    green, blue = (
        Hit(name, 0.9, {}, sha256=sha256((folder / name).read_bytes()).hexdigest())
        for name in ("green.png", "blue.png")
    )
    changed = Hit("red.png", 0.8, {}, sha256=blue.sha256)  # since it was indexed
    rows = [[green, blue, Hit("gone.png", 0.7, {})], [blue, changed]]
    save_sheet(contact_sheet(folder / "red.png", rows, folder), tmp_path / "out" / "sheet.png")
    with Image.open(tmp_path / "out" / "sheet.png") as sheet:
        assert sheet.size == (GAP + 3 * (SIDE + GAP),) * 2
        colors = {value: name for name, value in SHADES.items()} | {(213, 217, 222): "", (255, 255, 255): " "}
        centers = [GAP + SIDE // 2 + number * (SIDE + GAP) for number in range(3)]
        shown = [[colors[sheet.getpixel((x, y))] for x in centers] for y in centers]  # type: ignore[index]
    assert shown == [["red", " ", " "], ["green", "blue", ""], ["blue", "", " "]]
    assert contact_sheet(None, rows[:1], folder).size == (GAP + 3 * (SIDE + GAP), GAP + SIDE + GAP)
