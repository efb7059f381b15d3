"""The page of a search: the images of an index that are nearest to a query."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dear.data.images.decode import as_image, decode
from dear.errors import DearError
from dear.reading.remote import as_path
from dear.report.render import gallery_photo, render_page, write_page
from dear.retrieval.results import Hit
from dear.text import without_surrogates

PAGE = "query.html"


def write_query_page(
    out: Path,
    photos: Path,
    query: str,
    weights: Mapping[str, float],
    hits: Sequence[Hit],
    *,
    is_text: bool = False,
) -> tuple[Path, ...]:
    """Write query.html into a folder: the query, and what `Index.query_image` or `Index.query_text` found for
    it among the ``photos`` of the index, the nearest first. A file that can no longer be read is named only.
    Raises OutputError, and DataError for a query image that cannot be read.
    """
    found, unreadable = list[dict[str, Any]](), list[str]()
    for hit in hits:
        captions = {"score": f"{hit.score:.3f}"}
        if len(hit.by) > 1:
            captions |= {f"by {name}": f"{cosine:.3f}" for name, cosine in hit.by.items()}
        title = without_surrogates(hit.path)
        try:
            picture = as_image(decode(photos / hit.path))
        except (DearError, OSError):
            unreadable.append(title)
            continue
        found.append(gallery_photo(picture, title=title, alt="", captions=captions))
    pictures = [] if is_text else [as_image(decode(as_path(query)))]
    features = ", ".join(f"{name} ({weight:g})" for name, weight in weights.items())
    text = render_page(
        "query.html.j2",
        query=query,
        pictures=[gallery_photo(picture, title=query, alt="", captions={}) for picture in pictures],
        features=features,
        photos=str(photos),
        found=found,
        unreadable=unreadable,
    )
    return write_page(out, PAGE, text, {}, ())
