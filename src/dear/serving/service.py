"""The operations of the HTTP API and the page on images: one model, its queues, one index."""

import hashlib
import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor

from dear.adapters.attention import attention_maps
from dear.adapters.index_encoder import BundleEncoder
from dear.adapters.predictor import Predictor, Vocabulary
from dear.adapters.results import Candidate
from dear.data.images.decode import decode
from dear.data.images.transforms import eval_view, to_unit
from dear.errors import DataError
from dear.limits import at_most
from dear.retrieval.encoder import HeadEncoder
from dear.retrieval.index import Index, pair_weights
from dear.retrieval.results import Hit
from dear.roles.table import RoleTable
from dear.serving.examples import Example
from dear.serving.limits import Limits, Refused, check_picture
from dear.serving.queues import Batcher, Turns
from dear.serving.thumbnails import Thumbnails

MAX_RESULTS = 100
MOST_COPIES = 20
"""Files that a result names beside its first: more would be in memory while a request waits."""
PROMPTS, PROMPTS_ON_GPU = 16, 64
"""Prompts of new class names that go through the text tower at a time: fixed, as digits may depend on them.
Each time is short, for other names that wait; more prompts are quicker on a GPU only.
"""
CLOSING_SECONDS = 0.5  # that running work has to finish once no request waits for it


@dataclass(frozen=True)
class Upload:
    """An accepted image: preprocessed for the model, and its bytes' SHA-256."""

    pixels: Float[Tensor, "3 size size"]
    sha256: str


class Service:
    """Thread-safe operations: images are decoded a few at a time, the image tower's work is serialised, and
    features are computed in batches. New class names are encoded in a thread of their own, and hold up
    nothing else.
    """

    def __init__(
        self,
        predictor: Predictor,
        limits: Limits,
        index: Index | None = None,
        name: str = "",
        examples: Sequence[Example] = (),
    ) -> None:
        """``name`` is the bundle's display name; ``examples`` are offered on the page. Raises DataError if
        the index is of another bundle or, with features of heads, of another backbone.
        """
        self.predictor, self.limits, self.index = predictor, limits, index
        self.examples = tuple(examples)
        self.name = name or predictor.bundle.method
        self._prompts = PROMPTS if predictor.clip.logit_scale.device.type == "cpu" else PROMPTS_ON_GPU
        self._heads: HeadEncoder | None = None
        if index is not None:
            if (heads := index.metadata.get("heads")) is not None:
                self._heads = HeadEncoder(predictor.clip, heads)
            index.check(BundleEncoder(predictor) if self._heads is None else self._heads)
        self._model, self._searching = threading.Lock(), threading.Lock()
        self._decoding = threading.Semaphore(limits.decoders)
        self._thumbnails = Thumbnails(limits)
        self._ended: bool | None = None
        self.batches = self._batcher(self._encode)
        # Never all requests in progress wait for names.
        self._names: Turns[list[tuple[Candidate, ...]]] = Turns(max(1, limits.waiting // 2))
        self._searches = self.batches if self._heads is None else self._batcher(self._encode_heads)

    def _batcher(self, work: Callable[[Sequence[Tensor]], Sequence[Tensor]]) -> Batcher[Tensor, Tensor]:
        bounds = self.limits
        room = bounds.waiting + bounds.batch  # an image a request, and those that batches may have beyond
        return Batcher(work, max_batch=bounds.batch, wait=bounds.wait / 1000, waiting=room)

    @property
    def roles(self) -> RoleTable | None:
        return self.predictor.bundle.roles

    @property
    def attributes(self) -> tuple[str, ...]:
        """The names of the method's learned tokens: the attributes, without those that own no head."""
        method = self.predictor.method
        return tuple(name for name in method.layout.tokens_by_name if name not in method.unowned)

    def take(self, data: bytes, charge: Callable[[int], None] = lambda _: None) -> Upload:
        """Check and decode an image; ``charge`` is called with its number of pixels before they are unpacked,
        and may refuse them. Raises Refused: 413, 415, and 422 for a broken image.
        """
        with self._decoding:  # headers too: opening a file takes memory of its own
            charge(check_picture(data, self.limits))
            try:
                picture = decode(Path("upload"), data=data)
            except DataError as error:
                reason = str(error).removeprefix("cannot read the image upload: ")
                raise Refused(422, f"the image is broken: {reason}") from None
            view = to_unit(eval_view(picture, self.predictor.clip.preprocess))
        return Upload(view, hashlib.sha256(data).hexdigest())

    def features(self, upload: Upload) -> Future[Float[Tensor, "feature embed"]]:
        """Its unit features, computed with the next batch. Raises Refused (503)."""
        return self.batches.submit(upload.pixels)

    def search_features(self, upload: Upload) -> Future[Float[Tensor, "feature embed"]]:
        """The same for the features that the index has, which may be those of heads."""
        return self._searches.submit(upload.pixels)

    def vocabulary(self, names: tuple[str, ...]) -> Vocabulary | None:
        """Classes that can be scored at once: the bundle's, or others that are cached; None if their names
        must be encoded first. Raises LimitError, DataError, SettingsError for names that cannot be.
        """
        vocabulary = self.predictor.cached_vocabulary(names)
        if vocabulary is None:
            per_image = self.predictor.method.text_depends_on_image
            at_most(
                "request_classes_per_image" if per_image else "request_classes", len(names), "the request"
            )
            at_most("class_name", max(map(len, names)), "the request")
            self.predictor.check_names(names)
        return vocabulary

    def classify(
        self, features: Float[Tensor, "feature embed"], vocabulary: Vocabulary, top: int = 5
    ) -> tuple[Candidate, ...]:
        """The best classes of a vocabulary."""
        with self._model:
            return self._candidates(features, vocabulary, top)

    def classify_new(
        self,
        features: Sequence[Float[Tensor, "feature embed"]],
        names: tuple[str, ...],
        top: int = 5,
        *,
        client: str,
    ) -> Future[list[tuple[Candidate, ...]]]:
        """For each image the best of classes whose names are encoded first, in turn with other clients'.
        Refused (503) if too many wait, DataError, LimitError.
        """
        steps = len(self.predictor.pieces(names, self._prompts)) + max(0, len(features) - 1)
        return self._names.submit(client, self._encoding(features, names, top), steps)

    def _encoding(
        self, features: Sequence[Float[Tensor, "feature embed"]], names: tuple[str, ...], top: int
    ) -> Iterator[list[tuple[Candidate, ...]] | None]:
        """A step for each piece of the names, and for each image after the first."""
        by_image = list[tuple[Candidate, ...]]()
        for vocabulary in self.predictor.encoding(names, self._prompts):
            if vocabulary is None:
                yield None
                continue
            for image in features:
                if by_image:
                    yield None
                by_image.append(self._candidates(image, vocabulary, top))
            yield by_image

    def _candidates(
        self, features: Float[Tensor, "feature embed"], vocabulary: Vocabulary, top: int
    ) -> tuple[Candidate, ...]:
        return self.predictor.candidates(features[None].to(vocabulary.text), vocabulary, top)[0]

    def neighbours(
        self,
        features: Float[Tensor, "feature embed"],
        by: Sequence[str],
        weights: Sequence[float] | None = None,
        count: int = 8,
        without: str | None = None,
    ) -> list[Hit]:
        """The nearest images of the index by some of an image's `search_features`. Raises Refused: 404
        without an index, 503 if it can no longer be read.
        """
        check_count("count", count)
        if self.index is None:
            raise Refused(404, "this server has no index of images: start it with --index DIR.")
        names = self.predictor.features if self._heads is None else self._heads.features
        queries = dict(zip(names, features, strict=True))
        shares = pair_weights(by, weights)
        with self._searching:
            try:
                return self.index.query(queries, shares, count=count, without=without, copies=MOST_COPIES)
            except DataError as error:  # the message names folders of this machine
                logging.getLogger(__name__).warning("%s", error)
                message = "the index cannot be read now; see the server's log."
                raise Refused(503, message, kind="server") from None

    def attention(self, upload: Upload, layer: int, head: int) -> dict[str, Float[Tensor, "row column"]]:
        """The attention of a head to the patches, by the attending token. Raises SettingsError."""
        with self._model:
            return attention_maps(self.predictor.method, upload.pixels, layer, head)

    def thumbnail(self, name: str, sha256: str) -> bytes | None:
        """A small PNG of a file of the index; None if it can no longer be read, was changed since or is too
        large.

        Only a file with the content that the index knows: an index of a stranger may name any folder of this
        machine, whose pictures clients would see.
        """
        assert self.index is not None
        with self._decoding:
            return self._thumbnails.of(self.index.folder / name, sha256)

    def close(self) -> bool:
        """Stop accepting work; returns whether all running work has ended within a moment."""
        if self._ended is None:
            deadline = time.monotonic() + CLOSING_SECONDS
            ended = [batcher.close(CLOSING_SECONDS) for batcher in {self.batches, self._searches}]
            ended.append(self._names.close(max(0.0, deadline - time.monotonic())))
            locks: list[threading.Lock | threading.Semaphore] = [self._model, self._searching]
            for lock in [*locks, *[self._decoding] * self.limits.decoders]:
                ended.append(lock.acquire(timeout=max(0.0, deadline - time.monotonic())))
            self._ended = all(ended)
        return self._ended

    @torch.no_grad()
    def _encode(self, pixels: Sequence[Tensor]) -> Sequence[Tensor]:
        with self._model:
            return [*self.predictor.encode(torch.stack([*pixels])).cpu()]

    @torch.no_grad()
    def _encode_heads(self, pixels: Sequence[Tensor]) -> Sequence[Tensor]:
        assert self._heads is not None
        with self._model:
            return [*self._heads.of_views(torch.stack([*pixels])).cpu()]


def check_count(name: str, value: int) -> None:
    """Raise Refused (400) for a number of results that is out of range."""
    if not 1 <= value <= MAX_RESULTS:
        raise Refused(400, f"{name} is {value}: it must be between 1 and {MAX_RESULTS}.")
