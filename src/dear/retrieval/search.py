"""Search an index by image or by text."""

import hashlib
from collections.abc import Mapping
from pathlib import Path

from jaxtyping import Float
from torch import Tensor

from dear.data.images.decode import decode
from dear.data.images.raster import read_image
from dear.errors import DataError, SettingsError
from dear.retrieval.encoder import Encoder
from dear.retrieval.results import Hit
from dear.retrieval.shards import Searchable


def by_image(
    index: Searchable,
    encoder: Encoder,
    image: Path,
    weights: Mapping[str, float],
    *,
    count: int = 10,
    effort: float = 1.0,
    itself: bool = False,
    words: Mapping[str, str] | None = None,
) -> list[Hit]:
    """The images most similar to an image file, excluding the file itself unless ``itself``.

    ``words`` are texts for some of the features, which are compared with them instead of with the image.
    Raises DataError for an unreadable file or an empty text, SettingsError for a text of a feature that has
    no weight.
    """
    for name, text in (words or {}).items():
        if name not in weights:
            raise SettingsError(f"there are words for {name}, which the images are not compared by.")
        _require_words(text)
    content = read_image(image)
    features = encoder.images([decode(image, encoder.short_side, content)])[0]
    own = None if itself else hashlib.sha256(content).hexdigest()
    queries = _by_feature(encoder, features)
    for name, text in (words or {}).items():
        queries[name] = _by_feature(encoder, encoder.texts([text])[0])[name]
    return index.query(queries, weights, count=count, effort=effort, without=own)


def by_text(
    index: Searchable,
    encoder: Encoder,
    words: str,
    weights: Mapping[str, float],
    *,
    count: int = 10,
    effort: float = 1.0,
) -> list[Hit]:
    """The images whose features are nearest to a text's. Raises DataError for an empty text."""
    _require_words(words)
    return index.query(_by_feature(encoder, encoder.texts([words])[0]), weights, count=count, effort=effort)


def _by_feature(encoder: Encoder, rows: Float[Tensor, "feature embed"]) -> dict[str, Float[Tensor, "embed"]]:
    return dict(zip(encoder.features, rows, strict=True))


def _require_words(text: str) -> None:
    if not text.strip():
        raise DataError("the text is empty: give words to search for.")
