"""A contact sheet: a query and its neighbors as one PNG."""

import hashlib
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from math import ceil
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont, ImageOps

from dear.data.images.decode import as_image, decode, read_image
from dear.errors import DataError, OutputError
from dear.retrieval.results import Hit
from dear.writing import output_file

SIDE, GAP, LINE = 160, 8, 14  # pixels: cell of a picture, gap between cells, height of a line of text
INK, PAPER, MISSING = "#1b1f24", "#ffffff", "#d5d9de"


def contact_sheet(
    query: Path | None, title: str, rows: Mapping[str, Sequence[Hit]], folder: Path
) -> Image.Image:
    """The query (a picture or, without one, its text), then a row of neighbors for each search, by its title.

    A picture that can no longer be read, or was changed since it was indexed, is a gray cell.
    """
    columns = max(map(len, rows.values()), default=1) or 1
    cell, head = SIDE + 2 * LINE + GAP, LINE + GAP
    top = head + (SIDE + GAP if query else 0)
    sheet = Image.new("RGB", (GAP + columns * (SIDE + GAP), top + len(rows) * (head + cell)), PAPER)
    pen = ImageDraw.Draw(sheet)
    pen.text((GAP, GAP // 2), _short(title, columns * SIDE), fill=INK, font=_font())
    if query:
        sheet.paste(_thumbnail(query), (GAP, head))
    for number, (row_title, hits) in enumerate(rows.items()):
        y = top + number * (head + cell)
        pen.text((GAP, y), _short(row_title, columns * SIDE), fill=INK, font=_font())
        for column, hit in enumerate(hits):
            x = GAP + column * (SIDE + GAP)
            sheet.paste(_thumbnail(folder / hit.path, hit.sha256), (x, y + head))
            pen.text((x, y + head + SIDE), f"{hit.score:.3f}", fill=INK, font=_font())
            name = _short(Path(hit.path).name, SIDE)
            pen.text((x, y + head + SIDE + LINE), name, fill=INK, font=_font())
    return sheet


def check_sheet(path: Path) -> None:
    """Raise OutputError for a path that is a folder."""
    if not path.name or path.is_dir():
        raise OutputError(f"the contact sheet cannot be {str(path)!r}, which is a folder: name a PNG file.")


def save_sheet(sheet: Image.Image, path: Path) -> None:
    """Write a sheet atomically as PNG. Raises OutputError."""
    check_sheet(path)
    with output_file(path, "the contact sheet", "with --sheet") as file:
        sheet.save(file, "PNG")


def _thumbnail(path: Path, sha256: str | None = None) -> Image.Image:
    """A picture in a cell; with a hash only the content that has it."""
    try:
        content = read_image(path)
        if sha256 is not None and hashlib.sha256(content).hexdigest() != sha256:
            raise DataError(f"{path} was changed since it was indexed.")
        picture = decode(path, SIDE, content)
    except DataError:
        return Image.new("RGB", (SIDE, SIDE), MISSING)
    return ImageOps.pad(as_image(picture), (SIDE, SIDE), color=PAPER)


def _font() -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    return ImageFont.load_default(size=LINE - 3)


def _short(text: str, width: int) -> str:
    """Text truncated to a width, with an ellipsis."""
    font = _font()
    if font.getlength(text) <= width:
        return text
    ends = range(len(text) + 1)
    longest = bisect_right(ends, width, key=lambda end: ceil(font.getlength(text[:end] + "…"))) - 1
    return text[: max(0, longest)] + "…"
