"""Read images for an encoder, in batches, and remember their features in the cache folder, so that they are
encoded once, whatever they are called.
"""

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from dear.adapters.bundle import Bundle
from dear.adapters.encoder import Encoder
from dear.adapters.results import Unreadable
from dear.backbone.clip import tensors_hash
from dear.data.images.forms import HASH_BYTES, hash_image, hash_pixels, picture_of
from dear.data.images.hashes import recall_features, remember_features
from dear.data.images.photos import in_parallel
from dear.data.images.transforms import ahead, eval_view, to_unit
from dear.data.settings import DataSettings
from dear.data.sources.objects import each_image
from dear.errors import DataError
from dear.text import fingerprint


def identify_features(bundle: Bundle) -> str:
    """Hash of what image features depend on: the backbone's weights, the method, its parameters, settings and
    roles. Classes, templates and temperature are left out.
    """
    roles = bundle.roles
    heads = roles.heads if roles else ()
    return fingerprint(
        bundle.weights.sha256,
        bundle.method,
        repr(sorted(asdict(bundle.settings).items())),
        tensors_hash(dict(bundle.tensors)),
        *(roles.attributes if roles else ()),
        *(repr((head.layer, head.head, head.role, head.attribute)) for head in heads),
    )


@dataclass
class ReadImage:
    """An image that was read.

    Attributes:
        file: Its file, if it has one.
        pixels: As the model takes it, if its features are not remembered, or why it cannot be read.
        key: What its features are remembered by, or b"".
        hashes: Of its content, and of its pixels, if these were asked for.
        features: The remembered ones.
    """

    file: str | None
    pixels: Tensor | Unreadable | None = None
    key: bytes = b""
    hashes: Sequence[bytes] = ()
    features: Tensor | None = None


class ImageReader:
    """Reads images as an encoder takes them. With ``remember`` features are kept in the cache folder, by
    the content of each and what computes them, and taken from there.
    """

    def __init__(self, encoder: Encoder, *, remember: bool) -> None:
        self.encoder, settings = encoder, DataSettings()
        self.threads, self.cache = settings.threads, settings.cache_folder() if remember else None
        vocabulary, clip = encoder.own_vocabulary, encoder.clip
        self.like, self.identity = vocabulary.text, b""
        if remember:
            how = (
                self.like.dtype,
                self.like.device.type,
                vocabulary.precision,
                clip.preprocess,
                torch.__version__,
            )
            refuses = encoder.refusal_threshold > -float("inf")
            facts = identify_features(encoder.bundle), *map(str, (*how, refuses))
            self.identity = fingerprint(*facts).encode()

    def read(self, images: Any, batch: int) -> Iterator[list[ReadImage]]:
        """The images in batches, while the next ones are read."""
        remaining = each_image(images)
        parts = iter(lambda: [*islice(remaining, batch)], [])
        with closing(ahead(self._read_part, parts)) as batches:
            yield from batches

    def _read_part(self, images: Sequence[Any]) -> list[ReadImage]:
        if self.cache is None:
            return in_parallel(self._read, images, self.threads)
        keys = in_parallel(self._key, images, self.threads)
        known = recall_features(self.cache, [*filter(None, keys)])
        pairs = [(image, key, known.get(key)) for image, key in zip(images, keys, strict=True)]
        return in_parallel(lambda pair: self._read(*pair), pairs, self.threads)

    def _key(self, image: Any) -> bytes:
        """What the features of an image are remembered by; b"" if it cannot be read."""
        try:
            return self.identity + hash_image(image)
        except DataError:
            return b""

    def _read(self, image: Any, key: bytes = b"", remembered: bytes | None = None) -> ReadImage:
        """An image with its pixels, or with what is remembered of it: its pixels' hash, and features."""
        file, content = (str(image) if isinstance(image, str | Path) else None), key[-HASH_BYTES:]
        if remembered is not None:
            row = torch.frombuffer(bytearray(remembered[HASH_BYTES:]), dtype=self.like.dtype)
            features = row.view(-1, self.like.shape[1]).to(self.like.device)
            return ReadImage(file, None, key, (content, remembered[:HASH_BYTES]), features)
        try:
            if not key or (isinstance(image, Tensor) and self.encoder.has_views(image, axes=3)):
                # Views of the model's own size have more than 8 bits: what is remembered is of less.
                return ReadImage(file, self.encoder.preprocess(image), hashes=(content,) if key else ())
            picture = picture_of(image)
            pixels = to_unit(eval_view(picture, self.encoder.clip.preprocess))
            return ReadImage(file, pixels, key, (content, hash_pixels(picture)))
        except DataError as error:
            return ReadImage(file, Unreadable(file, str(error)))

    @torch.no_grad()
    def features(self, images: Sequence[ReadImage]) -> Float[Tensor, "batch feature embed"]:
        """As `Encoder.encode_all`, of readable images; new ones are remembered."""
        pixels = [image.pixels for image in images if isinstance(image.pixels, Tensor)]
        encoded = iter(self.encoder.encode_all(torch.stack(pixels)) if pixels else ())
        rows = [next(encoded) if image.features is None else image.features for image in images]
        new = {
            image.key: image.hashes[1] + row.cpu().contiguous().view(torch.uint8).numpy().tobytes()
            for image, row in zip(images, rows, strict=True)
            if image.key and image.features is None
        }
        if self.cache is not None and new:
            remember_features(self.cache, new)
        return torch.stack(rows)
