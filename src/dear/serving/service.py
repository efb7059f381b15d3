"""The operations of the HTTP API and the page on images: one model, its batches, one index."""

import asyncio
import hashlib
import logging
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path

import torch
from fastapi.concurrency import run_in_threadpool
from jaxtyping import Float
from PIL import Image
from torch import Tensor

from dear.adapters.attention import attention_maps
from dear.adapters.index_encoder import BundleEncoder
from dear.adapters.predictor import Predictor, Vocabulary
from dear.adapters.results import Candidate
from dear.data.images.decode import FORMATS, as_image, decode, open_image, read_image
from dear.data.images.transforms import eval_view, to_unit
from dear.errors import DataError, DearError
from dear.limits import LimitError, at_most
from dear.retrieval.encoder import HeadEncoder
from dear.retrieval.index import Index, pair_weights
from dear.retrieval.results import Hit
from dear.serving.examples import Example, encode_png
from dear.serving.limits import Limits, Refused

MOST_COPIES = 20
"""Files that a result names beside its first."""
DECODERS = 2  # images decoded at a time, as each takes up to a gigabyte
WAIT = 0.005  # seconds that a batch waits for more images
SIDE, LONGEST = 160, 640
"""Pixels of the shorter side of a thumbnail, and at most of the longer one."""
DEFAULTS = Limits()
THUMBNAILS = 128  # that are kept in memory


class Batcher:
    """Puts images that arrive together through ``work`` in one batch of up to ``size``, under a lock.

    Attributes:
        images, batches, largest: Images and batches so far, and the size of the largest batch.
    """

    def __init__(
        self, work: Callable[[Sequence[Tensor]], Sequence[Tensor]], size: int, lock: asyncio.Lock
    ) -> None:
        self.work, self.size, self.lock = work, size, lock
        self.images = self.batches = self.largest = 0
        self._queue = list[tuple[Tensor, asyncio.Future[Tensor]]]()
        self._task: asyncio.Task[None] | None = None

    async def submit(self, pixels: Tensor) -> Tensor:
        """The result of an image, computed with the next batch."""
        future: asyncio.Future[Tensor] = asyncio.get_running_loop().create_future()
        self._queue.append((pixels, future))
        if self._task is None:
            self._task = asyncio.create_task(self._run())
        return await future

    async def _run(self) -> None:
        while self._queue:
            if len(self._queue) < self.size:
                await asyncio.sleep(WAIT)
            async with self.lock:
                batch, self._queue = self._queue[: self.size], self._queue[self.size :]
                results: Sequence[Tensor | Exception]
                try:
                    results = await run_in_threadpool(self.work, [pixels for pixels, _ in batch])
                    self.images, self.batches = self.images + len(batch), self.batches + 1
                    self.largest = max(self.largest, len(batch))
                except Exception as error:
                    results = [error] * len(batch)
            for (_, future), result in zip(batch, results, strict=True):
                if future.cancelled():
                    continue
                if isinstance(result, Exception):
                    future.set_exception(result)
                else:
                    future.set_result(result)
        self._task = None


class Service:
    """A bundle and an index, for requests of one event loop: a lock for the model, one for new class names
    and one for the index, images in batches, and two places for decoding.
    """

    def __init__(
        self,
        predictor: Predictor,
        limits: Limits = DEFAULTS,
        index: Index | None = None,
        name: str = "",
        examples: Sequence[Example] = (),
    ) -> None:
        """``name`` is the bundle's display name; ``examples`` are offered on the page. Raises DataError if
        the index is of another bundle or, with features of heads, of another backbone.
        """
        self.predictor, self.limits, self.index = predictor, limits, index
        self.name, self.examples = name or predictor.bundle.method, tuple(examples)
        self._model, self._names, self._search = asyncio.Lock(), asyncio.Lock(), asyncio.Lock()
        self._decoders = asyncio.Semaphore(DECODERS)
        self._thumbnail = lru_cache(THUMBNAILS)(self._make_thumbnail)
        self.batches = self._searches = self._batcher(predictor.encode)
        self._heads: HeadEncoder | None = None
        if index is not None:
            if (heads := index.metadata.get("heads")) is not None:
                self._heads = HeadEncoder(predictor.clip, heads)
                self._searches = self._batcher(self._heads.of_views)
            index.check(self._heads or BundleEncoder(predictor))

    def _batcher(self, encode: Callable[[Tensor], Tensor]) -> Batcher:
        @torch.no_grad()
        def work(pixels: Sequence[Tensor]) -> Sequence[Tensor]:
            return [*encode(torch.stack([*pixels])).cpu()]

        return Batcher(work, self.limits.batch, self._model)

    async def decode(self, data: bytes) -> Float[Tensor, "3 size size"]:
        """Check and decode an image, as the model takes it. Raises Refused: 413, 415, 422."""
        async with self._decoders:
            return await run_in_threadpool(self._decode, data)

    def _decode(self, data: bytes) -> Float[Tensor, "3 size size"]:
        check_picture(data, self.limits)
        try:
            picture = decode(Path("upload"), data=data)
        except DataError as error:
            reason = str(error).removeprefix("cannot read the image upload: ")
            raise Refused(422, "image", f"the image is broken: {reason}") from None
        return to_unit(eval_view(picture, self.predictor.clip.preprocess))

    async def vocabulary(self, classes: Sequence[str] | None) -> Vocabulary:
        """The bundle's classes, or others. Raises LimitError, DataError, SettingsError for names that cannot
        be scored.
        """
        names = tuple(classes or self.predictor.classes)
        known = self.predictor.cached_vocabulary(names)
        if known is not None:
            return known
        per_image = self.predictor.method.text_depends_on_image
        at_most("request_classes_per_image" if per_image else "request_classes", len(names), "the request")
        at_most("class_name", max(map(len, names)), "the request")
        async with self._names:
            return await run_in_threadpool(self.predictor.vocabulary, names)

    async def predict(self, data: bytes, vocabulary: Vocabulary, top: int) -> tuple[Candidate, ...]:
        """The best classes of an image. Raises Refused."""
        features = await self.batches.submit(await self.decode(data))
        image = features[None].to(vocabulary.text)
        async with self._model:
            [candidates] = await run_in_threadpool(self.predictor.candidates, image, vocabulary, top)
        return candidates

    async def neighbours(
        self, data: bytes, by: Sequence[str], weights: Sequence[float] | None, count: int
    ) -> list[Hit]:
        """The nearest images of the index. Raises Refused: as `decode`, 404 without an index, 503 if it
        can no longer be read.
        """
        if self.index is None:
            raise Refused(404, "not-found", "this server has no index of images: start it with --index DIR.")
        shares, query = pair_weights(by, weights), hashlib.sha256(data).hexdigest()
        features = await self._searches.submit(await self.decode(data))
        queries = self.index.vectors((self._heads or self.predictor).features, features)
        async with self._search:
            try:
                return await run_in_threadpool(
                    self.index.query, queries, shares, count=count, without=query, copies=MOST_COPIES
                )
            except DataError as error:  # the message names folders of this machine
                logging.getLogger(__name__).warning("%s", error)
                raise Refused(503, "server", "the index cannot be read now: see the log.") from None

    async def attention(
        self, pixels: Float[Tensor, "3 size size"], layer: int, head: int
    ) -> dict[str, Float[Tensor, "row column"]]:
        """The attention of a head to the patches, by the attending token. Raises SettingsError."""
        async with self._model:
            return await run_in_threadpool(attention_maps, self.predictor.method, pixels, layer, head)

    async def thumbnail(self, hit: Hit) -> bytes | None:
        """A small PNG of a file of the index; None if it can no longer be read, was changed since or could
        not be uploaded.
        """
        assert self.index is not None
        try:
            async with self._decoders:
                return await run_in_threadpool(self._thumbnail, self.index.folder / hit.path, hit.sha256)
        except DearError:
            return None

    def _make_thumbnail(self, path: Path, sha256: str) -> bytes:
        """Only of a file with the content that the index knows: it may name any folder of this machine."""
        content = read_image(path)
        if hashlib.sha256(content).hexdigest() != sha256:
            raise DataError(f"{path} was changed.")
        check_picture(content, self.limits)
        image = as_image(decode(path, SIDE, content))
        image.thumbnail((LONGEST, LONGEST))  # a picture may be 16 times as long as it is wide
        return encode_png(image)


def check_picture(data: bytes, limits: Limits) -> None:
    """Check a file by its header alone. Raises Refused: 400 if it is empty, 415 if it is not an image in a
    supported format, 413 if it is too large or has too many pixels.
    """
    if not data:
        raise Refused(400, "image", "the file is empty: send an image.")
    if len(data) > limits.upload_bytes:
        raise Refused(413, "too-large", f"the upload is larger than {limits.upload:g} MiB, the limit.")
    try:
        with open_image(data) as file:
            megapixels = file.width * file.height / 1e6
    except (LimitError, Image.DecompressionBombError) as error:
        raise Refused(413, "too-large", f"the image is too large: {error}") from None
    except Exception:  # Pillow's exceptions for a broken header differ from format to format
        message = f"the file is not an image in a supported format: send {FORMATS}."
        raise Refused(415, "image", message) from None
    if megapixels > limits.megapixels:
        message = f"the image has {megapixels:.1f} megapixels, the limit is {limits.megapixels:g}."
        raise Refused(413, "too-large", message)
