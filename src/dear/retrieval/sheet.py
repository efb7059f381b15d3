"""A contact sheet: a query and its neighbors as one PNG."""

import hashlib
from collections.abc import Sequence
from pathlib import Path

from PIL import Image, ImageOps

from dear.data.images.decode import as_image, decode, read_image
from dear.errors import DataError, OutputError
from dear.retrieval.results import Hit
from dear.writing import output_file

SIDE, GAP = 160, 8  # pixels: a picture, and between pictures
PAPER, MISSING = "#ffffff", "#d5d9de"


def contact_sheet(query: Path | None, rows: Sequence[Sequence[Hit]], folder: Path) -> Image.Image:
    """The query, if it is a picture, and below it a row of neighbors for each search, best first.

    A picture that can no longer be read, or was changed since it was indexed, is gray.
    """
    cells = [[_thumbnail(folder / hit.path, hit.sha256) for hit in hits] for hits in rows]
    if query:
        cells = [[_thumbnail(query)], *cells]
    width, height = max(map(len, cells), default=0), len(cells)
    sheet = Image.new("RGB", (GAP + width * (SIDE + GAP), GAP + height * (SIDE + GAP)), PAPER)
    for y, row in enumerate(cells):
        for x, cell in enumerate(row):
            sheet.paste(cell, (GAP + x * (SIDE + GAP), GAP + y * (SIDE + GAP)))
    return sheet


def save_sheet(sheet: Image.Image, path: Path) -> None:
    """Write a sheet atomically as PNG. Raises OutputError."""
    if not path.name or path.is_dir():
        raise OutputError(f"the contact sheet cannot be {str(path)!r}, which is a folder: name a PNG file.")
    with output_file(path, "the contact sheet", "with --sheet") as file:
        sheet.save(file, "PNG")


def read_indexed(path: Path, sha256: str) -> bytes:
    """A file of an index. Raises DataError if it cannot be read, or was changed since it was indexed."""
    content = read_image(path)
    if hashlib.sha256(content).hexdigest() != sha256:
        raise DataError(f"{path} was changed since it was indexed.")
    return content


def _thumbnail(path: Path, sha256: str | None = None) -> Image.Image:
    """A picture of a sheet; with a hash only the content that has it."""
    try:
        content = read_image(path) if sha256 is None else read_indexed(path, sha256)
        return ImageOps.pad(as_image(decode(path, SIDE, content)), (SIDE, SIDE), color=PAPER)
    except DataError:
        return Image.new("RGB", (SIDE, SIDE), MISSING)
