"""The operations of the HTTP API and the page on images: one model, its batches, one index."""

import asyncio
import hashlib
import logging
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, UInt8
from PIL import Image
from prometheus_client.core import CounterMetricFamily, Metric
from torch import Tensor

from dear.adapters.attention import attention_maps
from dear.adapters.identity import short_identity
from dear.adapters.index_encoder import BundleEncoder
from dear.adapters.predictor import Predictor
from dear.adapters.vocabulary import Vocabulary
from dear.data.images.decode import FORMATS, as_image, as_picture, encode_png, open_image
from dear.data.images.forms import file_hash, hash_image
from dear.data.images.hashes import hash_files
from dear.data.images.transforms import eval_view, to_unit
from dear.data.settings import DataSettings
from dear.data.sources.class_names import plain_name
from dear.data.sources.corrections import (
    REMOVE,
    Correction,
    corrections_file,
    key_of,
    merge_corrections,
    read_corrections,
)
from dear.data.sources.folder import image_files
from dear.data.sources.shards import unpack_source
from dear.errors import DataError, DearError, first_line
from dear.limits import LimitError, require_at_most
from dear.reading.files import expanded
from dear.retrieval.encoder import HeadEncoder
from dear.retrieval.index import Index, pair_weights, read_indexed
from dear.retrieval.results import Hit
from dear.serving.limits import Limits, Refused
from dear.serving.review import ReviewDesk
from dear.serving.threads import Result, run_in
from dear.text import printable
from dear.writing import csv_path

MOST_COPIES = 20
"""Files that a result names beside its first."""
DECODERS = 2  # images decoded at a time, as each takes up to a gigabyte
SIDE, LONGEST = 160, 640
"""Pixels of the shorter side of a thumbnail, and at most of the longer one."""
REDUCED = 1024  # pixels that each side of a large JPEG keeps at least
DEFAULTS = Limits()
THUMBNAILS = 128  # that are kept in memory
OWN = "*"  # among the class names of a request: all of the bundle


class Batcher:
    """Puts the images that wait through ``encode`` together, up to ``size``, in the model's only thread, and
    finishes each there.

    Attributes:
        images, batches, largest: Images and batches so far, and the size of the largest batch.
    """

    def __init__(self, encode: Callable[[Tensor], Tensor], size: int, thread: ThreadPoolExecutor) -> None:
        self.encode, self.size, self.thread = encode, size, thread
        self.images = self.batches = self.largest = 0
        self._queue = deque[tuple[Tensor, Callable[[Tensor], Any], Future[Any]]]()

    async def submit(self, pixels: Tensor, finish: Callable[[Tensor], Result]) -> Result:
        """What is made of the features of an image, which are computed with the next batch."""
        future = Future[Result]()
        self._queue.append((pixels, finish, future))
        self.thread.submit(self._run)
        return await asyncio.wrap_future(future)

    def _run(self) -> None:
        waiting = [self._queue.popleft() for _ in range(min(self.size, len(self._queue)))]
        batch = [each for each in waiting if each[-1].set_running_or_notify_cancel()]
        if not batch:
            return
        try:
            encoded = self.encode(torch.stack([pixels for pixels, *_ in batch]))
        except Exception as error:
            for *_, future in batch:
                future.set_exception(error)
            return
        self.images, self.batches = self.images + len(batch), self.batches + 1
        self.largest = max(self.largest, len(batch))
        for (_, finish, future), features in zip(batch, encoded, strict=True):
            try:
                future.set_result(finish(features))
            except Exception as error:
                future.set_exception(error)

    def continue_from(self, earlier: "Batcher") -> None:
        """Count on from those of an earlier one."""
        self.images, self.batches = self.images + earlier.images, self.batches + earlier.batches
        self.largest = max(self.largest, earlier.largest)

    def collect(self) -> Iterable[Metric]:
        """The counts, for Prometheus."""
        for name, count in (("images", self.images), ("batches", self.batches)):
            yield CounterMetricFamily(f"dear_{name}", f"{name.title()} that went through the model.", count)


class Service:
    """A bundle and an index, for requests of one event loop. Each kind of work has its own threads: one for
    the model, for new class names, for the index and for corrections, and two for decoding.
    """

    def __init__(
        self,
        predictor: Predictor,
        limits: Limits = DEFAULTS,
        index: Index | None = None,
        name: str = "",
        data: Path | None = None,
        review: ReviewDesk | None = None,
    ) -> None:
        """``name`` is the bundle's display name. Corrections of images are kept beside ``data``, those of its
        ``review`` too. Raises DataError if the index is of another bundle or, with features of heads, of
        another backbone.
        """
        self.predictor, self.limits, self.index = predictor, limits, index
        self.name, self.data, self.review = name or predictor.bundle.method, data, review
        self.identity = short_identity(predictor.bundle)
        self._model, self._names, self._search = (ThreadPoolExecutor(1) for _ in range(3))
        self._decoders, self._corrections = ThreadPoolExecutor(DECODERS), ThreadPoolExecutor(1)
        self._thumbnail = lru_cache(THUMBNAILS)(self._make_thumbnail)
        self.batches = self._searches = Batcher(predictor.encode_all, limits.batch, self._model)
        self._searched = predictor.features
        if index is not None:
            if (facts := index.metadata.get("heads")) is None:
                index.check(BundleEncoder(predictor))
            else:
                heads = HeadEncoder(predictor.clip, facts)
                index.check(heads)
                self._searches = Batcher(heads.of_views, limits.batch, self._model)
                self._searched = heads.features

    async def decode(self, data: bytes) -> Float[Tensor, "3 size size"]:
        """Check and decode an image, as the model takes it. Raises Refused: 413, 415, 422."""
        return to_unit(await run_in(self._decoders, self._decode, data))

    def _decode(self, data: bytes) -> UInt8[Tensor, "3 size size"]:
        return eval_view(decode_picture(data, self.limits), self.predictor.clip.preprocess)

    async def vocabulary(self, classes: Sequence[str] | None, **steering: Any) -> Vocabulary:
        """The bundle's classes, or others, of which `OWN` stands for all of the bundle, steered as by
        `Vocabulary.steered`. Raises LimitError, DataError, SettingsError for names that cannot be scored or
        what cannot be steered.
        """
        return (await self._named(classes)).steered(**steering)

    async def _named(self, classes: Sequence[str] | None) -> Vocabulary:
        own = self.predictor.classes
        names = tuple(name for word in classes or [OWN] for name in (own if word == OWN else [word]))
        known = self.predictor.cached_vocabulary(names)
        if known is not None:
            return known
        per_image = self.predictor.method.declaration.text_depends_on_image
        require_at_most(
            "request_classes_per_image" if per_image else "request_classes", len(names), "the request"
        )
        require_at_most("class_name", max(map(len, names)), "the request")
        return await run_in(self._names, self.predictor.vocabulary, names)

    async def predict(self, data: bytes, vocabulary: Vocabulary, top: int) -> dict[str, Any]:
        """The best classes of an image, whether it looks like none of them, with an operating point what is
        decided, and of a steered vocabulary the best classes by the bundle's own weights. Raises Refused.
        """

        def rank(features: Tensor) -> Any:
            return self.predictor.rank(features[None].to(vocabulary.text), vocabulary, top)[0]

        ranked = await self.batches.submit(await self.decode(data), rank)
        best, none, decision, decided, unchanged = ranked
        answer = {
            "top": [asdict(candidate) for candidate in best],
            "none_of_these": none,
            "bundle": self.identity,
        }
        if vocabulary.unchanged is not None:
            answer["unchanged"] = [asdict(candidate) for candidate in unchanged]
        return answer | ({"decision": decision, "decided_class": decided or None} if decision else {})

    async def neighbors(
        self, data: bytes, by: Sequence[str], weights: Sequence[float] | None, count: int
    ) -> list[Hit]:
        """The nearest images of the index. Raises Refused: as `decode`, 404 without an index, 503 if it
        can no longer be read.
        """
        if (index := self.index) is None:
            raise Refused(404, "not-found", "this server has no index of images: start it with --index DIR.")
        shares, content = pair_weights(by, weights), hashlib.sha256(data).hexdigest()
        features = await self._searches.submit(await self.decode(data), Tensor.cpu)
        queries = index.vectors(self._searched, features[: len(self._searched)])

        def search() -> list[Hit]:
            return index.query(queries, shares, count=count, without=content, copies=MOST_COPIES)

        try:
            return await run_in(self._search, search)
        except DataError as error:  # the message names folders of this machine
            logging.getLogger(__name__).warning("%s", error)
            raise Refused(503, "server", "the index cannot be read now: see the log.") from None

    async def attention(
        self, pixels: Float[Tensor, "3 size size"], layer: int, head: int
    ) -> dict[str, Float[Tensor, "row column"]]:
        """The attention of a head to the patches, by the attending token. Raises SettingsError."""
        return await run_in(self._model, attention_maps, self.predictor.method, pixels, layer, head)

    async def correct(self, image: bytes, label: str, name: str, *, is_new: bool = False) -> dict[str, Any]:
        """Put what an image shows into the corrections beside the data, and say whether it is there; if not,
        the row has the ``name``. Raises Refused: as `decode`, 404 without data, 400 for an empty label;
        NewClassError for a label that neither the bundle nor the corrections have, unless it ``is_new``.
        """
        table = None if self.data is None else corrections_file(self.data)
        if table is None:
            raise Refused(404, "not-found", "this server keeps no corrections: start it with --data FOLDER.")
        require_at_most("class_name", len(label), "the request")
        require_at_most("class_name", len(name), "the request")
        if not plain_name(label):
            raise Refused(400, "parameter", "label is empty: give a class, or none.")
        await self.decode(image)
        rows, bundle = await self._in_corrections(read_corrections, table), self.predictor.bundle
        new = [label] if is_new else [row.label for row in rows]
        key = key_of(label, bundle.keys or bundle.classes, bundle.classes, new)
        return await self._in_corrections(self._correct, table, image, key, name)

    async def _in_corrections(self, work: Callable[..., Result], *arguments: object) -> Result:
        """The result of work on the corrections. Raises Refused (500) if they cannot be read."""
        try:
            return await run_in(self._corrections, work, *arguments)
        except (DataError, LimitError) as error:  # the message names files of this machine
            logging.getLogger(__name__).error("%s", error)
            raise Refused(500, "server", "the corrections cannot be read: see the server's log.") from None

    def _correct(self, table: Path, image: bytes, key: str, name: str) -> dict[str, Any]:
        settings, content = DataSettings(), hash_image(image)
        data = expanded(self.data or table.parent)
        unpacked = unpack_source(data, settings)
        folder, places = unpacked or (table.parent, [table.parent])
        files = [file for place in places for file in image_files(place)]
        hashes = hash_files(files, settings.threads, settings.cache_folder())
        found = [file for file, known in zip(files, hashes, strict=True) if known == content]
        # A path in an archive is read beside the table.
        beside = [table.parent / file.relative_to(folder) if unpacked else file for file in found]
        here = [csv_path(str(file), table) for file in beside]
        rows = [Correction(path, key, content) for path in here] or [
            Correction(printable(name), key, content)
        ]
        merge_corrections(table, rows if key == REMOVE else rows[:1], settings)
        return {"label": key, "is_in_data": bool(here)}

    async def corrected_label(self, hit: Hit) -> str | None:
        """The class that the corrections beside the data have for a file of the index; None without any."""
        table = None if self.data is None else corrections_file(self.data)
        if table is None or self.index is None:
            return None
        file = self.index.folder / hit.path
        try:
            return await run_in(self._corrections, find_label, table, file)
        except DearError:  # the file or the table cannot be read now
            return None

    async def preview(self, data: bytes) -> bytes:
        """A small PNG of an image. Raises Refused, as `decode`."""
        return await run_in(self._decoders, self._make_preview, data)

    def _make_preview(self, data: bytes) -> bytes:
        return make_png(decode_picture(data, self.limits, SIDE), LONGEST)

    async def thumbnail(self, hit: Hit) -> bytes | None:
        """A small PNG of a file of the index; None if it can no longer be read, was changed since or could
        not be uploaded.
        """
        assert self.index is not None
        try:
            return await run_in(self._decoders, self._thumbnail, self.index.folder / hit.path, hit.sha256)
        except DearError:
            return None

    def _make_thumbnail(self, path: Path, sha256: str) -> bytes:
        return self._make_preview(read_indexed(path, sha256))


class Served:
    """The service that answers now, and ``load``, which makes that of the bundle as it is by now from it."""

    def __init__(self, service: Service, load: Callable[[Service], Service] | None = None) -> None:
        self.now, self.load, self._loading = service, load, asyncio.Lock()

    async def reload(self) -> dict[str, Any]:
        """Load the bundle again, while requests are answered by the present one, and take it if it can be
        loaded. Raises Refused: 404 for a server that cannot, 409 for a bundle that does not fit.
        """
        if self.load is None:
            raise Refused(404, "not-found", "this server loads no other bundle: start it with a token.")
        async with self._loading:
            before = self.now
            try:
                service = await asyncio.to_thread(self.load, before)
            except DearError as error:  # the message names files of this machine
                logging.getLogger(__name__).error("%s", error)
                message = "the bundle cannot be loaded, the present one stays: see the server's log."
                raise Refused(409, "server", message) from None
            service.batches.continue_from(before.batches)
            self.now = service
        return {"bundle": service.identity, "changed": service.identity != before.identity}

    def collect(self) -> Iterable[Metric]:
        """The counts of all services, for Prometheus."""
        return self.now.batches.collect()


def find_label(table: Path, file: Path) -> str | None:
    """The class that a table of corrections has for the content of a file, in its last row; None without one.
    Raises DataError if either cannot be read.
    """
    corrections = read_corrections(table)
    content = file_hash(file) if corrections else b""
    return next((row.label for row in reversed(corrections) if row.content == content), None)


def make_png(picture: UInt8[Tensor, "3 height width"], longest: int) -> bytes:
    """A PNG of a picture, which may be 16 times as long as it is wide: reduced to the longest side."""
    image = as_image(picture)
    image.thumbnail((longest, longest))
    return encode_png(image)


def decode_picture(
    data: bytes, limits: Limits, short_side: int | None = None
) -> UInt8[Tensor, "3 height width"]:
    """Decode an upload, after a check of its header. A JPEG with more pixels than the limit is reduced to a
    half, a quarter or an eighth while it is decoded, so that it never takes their memory.

    Raises Refused: 400 if it is empty, 415 if it is not an image in a supported format, 413 if it is too
    large or has too many pixels, 422 if it is broken.
    """
    if not data:
        raise Refused(400, "image", "the file is empty: send an image.")
    limits.check_size(len(data), room=0)
    try:
        file = open_image(data)
    except (LimitError, Image.DecompressionBombError) as error:
        raise Refused(413, "too-large", f"the image is too large: {error}") from None
    except Exception:  # Pillow's exceptions for a broken header differ from format to format
        message = f"the file is not an image in a supported format: send {FORMATS}."
        raise Refused(415, "image", message) from None
    with file:
        if (megapixels := file.width * file.height / 1e6) > limits.megapixels:
            file.draft("RGB", (REDUCED, REDUCED))
        if file.width * file.height / 1e6 > limits.megapixels:
            message = f"the image has {megapixels:.1f} megapixels, the limit is {limits.megapixels:g}."
            raise Refused(413, "too-large", message)
        try:
            return as_picture(file, short_side)
        except Exception as error:
            reason = first_line(error).rstrip(".")
            raise Refused(422, "image", f"the image is broken: {reason}.") from None
