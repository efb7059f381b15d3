"""Pages: one self-contained HTML file each, made of a template, and the tables and figures beside it."""

import base64
import io
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from PIL import Image

from dear.report.drawing import Drawing, figure_files
from dear.text import printable
from dear.writing import output_file, output_folder

THUMBNAIL = 112  # pixels of a photograph on a page


def data_url(picture: Image.Image, image_format: str, **options: Any) -> str:
    """A picture as a data URL."""
    stream = io.BytesIO()
    picture.save(stream, image_format, **options)
    return f"data:image/{image_format.lower()};base64,{base64.b64encode(stream.getvalue()).decode()}"


def gallery_photo(
    picture: Image.Image, *, title: str, alt: str, captions: Mapping[str, str]
) -> dict[str, Any]:
    """A photo as the macro ``photos`` of the templates shows it: small, its file as ``title``, and
    ``captions`` (what it is -> a text).
    """
    small = picture.copy()
    small.thumbnail((THUMBNAIL, THUMBNAIL))
    return {"url": data_url(small, "JPEG", quality=80), "title": title, "alt": alt, "captions": captions}


def render_page(template: str, **variables: Any) -> str:
    """Render a template of the package, control characters in its variables escaped; a name that the template
    uses but is not given is an error.
    """
    environment = Environment(
        loader=PackageLoader("dear.report"),
        autoescape=True,
        finalize=_finalized,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(template).render(**variables)


def _finalized(value: Any) -> Any:
    return printable(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def write_html(path: Path, text: str) -> Path:
    """Write a page atomically. Raises OutputError."""
    with output_file(path, "the page") as file:
        file.write(text.encode())
    return path


def write_page(
    folder: Path, name: str, text: str, files: Mapping[str, bytes], drawings: Iterable[Drawing]
) -> tuple[Path, ...]:
    """Write a page, other files and its figures as SVG into a folder; all files or none. Returns them, the
    page first. Raises OutputError.
    """
    contents = {name: text.encode(), **files, **figure_files(drawings)}
    return output_folder(folder, contents, "the page to")
