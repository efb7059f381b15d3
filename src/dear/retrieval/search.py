"""Search an index by image or by text."""

import hashlib
from collections.abc import Mapping
from pathlib import Path

from dear.data.images.decode import decode
from dear.data.images.raster import read_image
from dear.errors import DataError
from dear.retrieval.encoder import Encoder
from dear.retrieval.query import Index
from dear.retrieval.results import Hit


def by_image(
    index: Index,
    encoder: Encoder,
    image: Path,
    weights: Mapping[str, float],
    *,
    count: int = 10,
    effort: float = 1.0,
    itself: bool = False,
) -> list[Hit]:
    """The images most similar to an image file, excluding the file itself unless ``itself``. Raises DataError
    for an unreadable file.
    """
    content = read_image(image)
    features = encoder.images([decode(image, encoder.short_side, content)])[0]
    own = None if itself else hashlib.sha256(content).hexdigest()
    return index.query(
        dict(zip(encoder.features, features, strict=True)), weights, count=count, effort=effort, without=own
    )


def by_text(
    index: Index,
    encoder: Encoder,
    words: str,
    weights: Mapping[str, float],
    *,
    count: int = 10,
    effort: float = 1.0,
) -> list[Hit]:
    """The images whose features are nearest to a text's. Raises DataError for an empty text."""
    if not words.strip():
        raise DataError("the text is empty: give words to search for.")
    return index.query(
        dict.fromkeys(encoder.features, encoder.texts([words])[0]), weights, count=count, effort=effort
    )
