"""A contact sheet: a query and its neighbors as one PNG."""

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path

from PIL import Image, ImageDraw, ImageOps

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
    width, head, cell = columns * (SIDE + GAP), LINE + GAP, SIDE + 2 * LINE + GAP
    top = head + (SIDE + GAP if query else 0)
    sheet = Image.new("RGB", (GAP + width, top + len(rows) * (head + cell)), PAPER)
    sheet.paste(_text(title, width), (GAP, GAP // 2))
    if query:
        sheet.paste(_thumbnail(query), (GAP, head))
    for number, (row_title, hits) in enumerate(rows.items()):
        y = top + number * (head + cell)
        sheet.paste(_text(row_title, width), (GAP, y))
        for column, hit in enumerate(hits):
            x = GAP + column * (SIDE + GAP)
            sheet.paste(_thumbnail(folder / hit.path, hit.sha256), (x, y + head))
            sheet.paste(_text(f"{hit.score:.3f}", SIDE), (x, y + head + SIDE))
            sheet.paste(_text(Path(hit.path).name, SIDE), (x, y + head + SIDE + LINE))
    return sheet


def save_sheet(sheet: Image.Image, path: Path) -> None:
    """Write a sheet atomically as PNG. Raises OutputError."""
    check_sheet(path)
    with output_file(path, "the contact sheet", "with --sheet") as file:
        sheet.save(file, "PNG")


def check_sheet(path: Path) -> None:
    """Raise OutputError for a path that is a folder."""
    if not path.name or path.is_dir():
        raise OutputError(f"the contact sheet cannot be {str(path)!r}, which is a folder: name a PNG file.")


def read_indexed(path: Path, sha256: str) -> bytes:
    """A file of an index. Raises DataError if it cannot be read, or was changed since it was indexed."""
    content = read_image(path)
    if hashlib.sha256(content).hexdigest() != sha256:
        raise DataError(f"{path} was changed since it was indexed.")
    return content


def _thumbnail(path: Path, sha256: str | None = None) -> Image.Image:
    """A picture in a cell; with a hash only the content that has it."""
    try:
        content = read_image(path) if sha256 is None else read_indexed(path, sha256)
        return ImageOps.pad(as_image(decode(path, SIDE, content)), (SIDE, SIDE), color=PAPER)
    except DataError:
        return Image.new("RGB", (SIDE, SIDE), MISSING)


def _text(text: str, width: int) -> Image.Image:
    """A line of text, cut off at a width."""
    line = Image.new("RGB", (width, LINE), PAPER)
    ImageDraw.Draw(line).text((0, 0), text.replace("\n", " "), fill=INK, font_size=LINE - 3)
    return line
