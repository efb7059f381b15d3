"""The batches of an epoch, and all training images at once for methods that use them before training."""

import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dear.backbone.device import mixed
from dear.backbone.names import Precision
from dear.data.dataset import Images, Picture
from dear.data.fewshot import Subset, leave_subsets
from dear.data.images.forms import hash_bytes
from dear.data.images.photos import distinct_pictures, image_hashes, number_groups
from dear.data.images.transforms import (
    Move,
    ahead_on,
    load_test_views,
    load_views,
    prefetch,
    train_view,
    view_numbers,
    whole_view,
)
from dear.methods.base import Method, Readout, TrainingImages
from dear.methods.optional import ComputesTargets, LeavesOut, step_hooks
from dear.training.cache import Cache, trunk_facts
from dear.training.seeding import generator
from dear.training.settings import TrainSettings

TARGETS_AT_ONCE = 32
"""How many whole images have their target features computed together."""


Pixels = Float[Tensor, "item 3 size size"]


@dataclass(frozen=True)
class Batch:
    """The images of a step, in random views: the first view of each, then the second ones, if there are
    several.

    Attributes:
        indices: Indices of the images.
        labels: Classes of the views.
        trunk: Trunk outputs of the views.
        frozen: Target features of the views; None for a method without.
    """

    indices: Int[Tensor, "item"]
    labels: Int[Tensor, "view"]
    trunk: Float[Tensor, "view token width"]
    frozen: Float[Tensor, "view target"] | None


@dataclass(frozen=True)
class _Draw:
    """The images of a step before their views are computed, and the cache key of these."""

    step: int
    indices: Int[Tensor, "item"]
    key: tuple[object, ...]


class Batches:
    """Makes the batches of a run. Random views depend only on the seed, the epoch, the step and the position
    in the batch, not on the method; with a view seed, only on that seed, the epoch and the image.

    Attributes:
        epoch_steps: Number of batches in an epoch.
    """

    def __init__(
        self,
        method: Method,
        images: Images,
        settings: TrainSettings,
        seed: int,
        cache: Cache,
    ) -> None:
        self.method, self.images, self.settings, self.seed = method, images, settings, seed
        self.cache, self.like = cache, method.clip.image.projection
        self._hooks = step_hooks(method)
        self._whole: Tensor | None = None
        first, self._composed = self._order(0)
        self.epoch_steps = len(first)

    def load_epoch(self, epoch: int, steps: int | None = None) -> Iterator[Batch]:
        """The batches of an epoch, counted from 0, or the first ``steps``; the next batches are loaded in the
        background.
        """
        draws = [self._draw(epoch, *batch) for batch in enumerate(self._order(epoch)[0][:steps])]
        loads = ((draw, self.cache.find("trunk", draw.key) is not None) for draw in draws)
        with closing(ahead_on(self.like.device, partial(self._load, epoch), loads)) as loaded:
            for draw, views in zip(draws, loaded, strict=True):
                labels = self.images.labels[draw.indices].repeat(self._hooks.views_per_image)
                trunk = self.cache.get("trunk", draw.key, partial(self._trunk, epoch, draw, views))
                frozen = self._frozen(draw, trunk, views)
                yield Batch(draw.indices, labels.to(self.like.device), trunk, frozen)

    def _order(self, epoch: int) -> tuple[Sequence[Int[Tensor, "item"]], bool]:
        """The images of each batch, and whether the method composed them."""
        draw = generator(self.seed, "order", epoch)
        composed = self._hooks.batches(self.images.labels, self.settings.batch, draw)
        if composed is not None:
            return composed, True
        order = torch.randperm(len(self.images), generator=draw)
        return order.split(self.settings.batch)[: self.settings.epoch_steps(len(order))], False

    def _draw(self, epoch: int, step: int, batch: Int[Tensor, "item"]) -> _Draw:
        key = (
            self.images.identity,
            *trunk_facts(self.method, self.settings.precision),
            *(self.seed, epoch, step, self.settings.batch, len(batch), self.settings.view_seed),
            *(self.settings.crop, self._hooks.views_per_image),
            tuple(batch.tolist()) if self._composed else None,
        )
        return _Draw(step, batch, key)

    def _load(self, epoch: int, load: tuple[_Draw, bool], move: Move) -> Pixels | None:
        """Load the views of a step, in a thread; None if their trunk outputs are cached and targets need no
        views.
        """
        draw, in_memory = load
        return None if in_memory and self.method.target != "view" else move(self._views(epoch, draw))

    def _views(self, epoch: int, draw: _Draw) -> Pixels:
        """The random views of a step: the first of each image, then the second of each, if there are
        several.
        """
        preprocess, scale = self.method.clip.preprocess, (self.settings.crop, 1.0)
        draws = [self._numbers(epoch, draw, n).tolist() for n in range(self._hooks.views_per_image)]

        def views(picture: Picture, row: int) -> Tensor:
            view = partial(train_view, picture, preprocess.size, scale=scale)
            return torch.stack(
                [view(numbers[row], interpolation=preprocess.interpolation) for numbers in draws]
            )

        return load_views(self.images, draw.indices, views).transpose(0, 1).flatten(0, 1)

    @torch.no_grad()
    def _trunk(self, epoch: int, draw: _Draw, views: Pixels | None) -> Float[Tensor, "view token width"]:
        """Trunk outputs of views, which are loaded again if the outputs have left the cache meanwhile."""
        views = (self._views(epoch, draw) if views is None else views).to(self.like.device)
        with mixed(self.like.device, self.settings.precision):
            return self.method.image_trunk(views)

    @torch.no_grad()
    def _frozen(
        self, draw: _Draw, trunk: Float[Tensor, "view token width"], views: Pixels | None
    ) -> Float[Tensor, "view target"] | None:
        """Target features. Those made of trunk outputs are kept beside them."""
        if self.method.target is None:
            return None
        if self.method.target == "whole":
            return self._whole_targets()[draw.indices].repeat(self._hooks.views_per_image, 1)
        if self.method.target == "view":
            assert views is not None, "they are loaded for each step"
            return self._targets(views)

        def compute() -> Tensor:
            with mixed(self.like.device, self.settings.precision):
                return self.method.frozen_image(self.method.read_out(trunk))

        return self.cache.get("target", draw.key, compute)

    def _whole_targets(self) -> Float[Tensor, "item target"]:
        """Target features of all whole images, computed once. The same ones are always computed together, in
        a resumed run too, because the last digits depend on it.
        """
        if self._whole is None:
            facts = trunk_facts(self.method, self.settings.precision)
            key = (
                self.images.identity,
                *facts,
                self.method.name,
                json.dumps(self.method.fingerprint_fields()),
            )
            self._whole = self.cache.get("target", key, self._compute_whole_targets)
        return self._whole

    def _compute_whole_targets(self) -> Float[Tensor, "item target"]:
        parts = torch.arange(len(self.images)).split(TARGETS_AT_ONCE)
        return torch.cat([self._targets(load_views(self.images, part, self._whole_view)) for part in parts])

    def _whole_view(self, picture: Picture, _row: int) -> Tensor:
        preprocess = self.method.clip.preprocess
        return whole_view(picture, preprocess.size, preprocess.interpolation)

    def _targets(self, views: Pixels) -> Float[Tensor, "item target"]:
        assert isinstance(self.method, ComputesTargets), "as its target says"
        with mixed(self.like.device, self.settings.precision):
            return self.method.target_features(views.to(self.like.device))

    def _numbers(self, epoch: int, draw: _Draw, number: int) -> Float[Tensor, "item draw"]:
        """The random numbers that define view ``number`` of each image of a step."""
        purpose = [number] if number else []
        if self.settings.view_seed is None:
            stream = generator(self.seed, "views", epoch, draw.step, *purpose)
            return view_numbers(len(draw.indices), stream)
        base, items = leave_subsets(self.images, draw.indices)
        contents = getattr(base, "hashes", None) or [b""] * len(base)  # of a user's own images
        names = (contents[item].hex() or item for item in items.tolist())
        streams = (generator(self.settings.view_seed, "view", epoch, name, *purpose) for name in names)
        return torch.cat([view_numbers(1, stream) for stream in streams])


def training_images(
    method: Method,
    images: Images,
    settings: TrainSettings,
    seed: int,
    cache: Cache,
    *,
    with_copies: bool = False,
) -> TrainingImages:
    """The argument of `UsesAllImages.before_training`, whose views are computed on demand.

    Random views are drawn from the view seed if there is one, else from the seed, and differ from those of
    every epoch. Copies are left out for a method that leaves images out, unless they are asked for.
    """
    if isinstance(method, LeavesOut) and not with_copies:
        first = distinct_pictures(images)
        images = Subset(images, first) if len(first) < len(images) else images
    readouts = cache.readouts_of(method, images)
    preprocess, like = method.clip.preprocess, method.clip.image.projection
    stream = seed if settings.view_seed is None else settings.view_seed

    def draw_numbers(number: int) -> list[list[float]]:
        """The random numbers of view ``number`` of each image."""
        draw = partial(generator, stream, "views before training", number)
        if readouts is None or not readouts.draws_by_content:
            return view_numbers(len(images), draw()).tolist()
        return [view_numbers(1, draw(name))[0].tolist() for name in _name_copies(images)]

    def load_random(drawn: Sequence[Sequence[float]], indices: Int[Tensor, "item"]) -> Pixels:
        def view(picture: Picture, row: int) -> Tensor:
            numbers, scale = drawn[int(indices[row])], (settings.crop, 1.0)
            return train_view(picture, preprocess.size, numbers, scale, preprocess.interpolation)

        return load_views(images, indices, view)

    @torch.no_grad()
    def view(number: int | None = None) -> Readout:
        title, facts, names = "encoding images", tuple[object, ...](), list[bytes]()
        load: Callable[[Tensor], Tensor] = partial(load_test_views, images, preprocess=preprocess)
        if number is not None:
            title, facts = f"encoding random view {number + 1}", ("random", stream, number, settings.crop)
            load = partial(load_random, drawn := draw_numbers(number))
            names = [hash_bytes(repr((settings.crop, numbers)).encode()) for numbers in drawn]
        everything = torch.arange(len(images))
        if readouts is not None:
            report_progress = partial(cache.progress, title)
            how: dict[str, Any] = {"views": names, "load_views": load, "progress": report_progress}
            return readouts.read(method, images, everything, settings.precision, **how)
        at_once = method.clip.image.images_at_once

        def compute() -> Float[Tensor, "item token width"]:
            trunks, done = [], 0
            with closing(prefetch(load, everything.split(at_once), like.device)) as loaded:
                for views in loaded:
                    with mixed(like.device, settings.precision):
                        trunks.append(method.image_trunk(views))
                    cache.progress(title, done := done + len(views), len(images))
            return torch.cat(trunks).to(like)  # most methods continue in full precision

        trunk = cache.get("trunk", view_key(method, images, settings.precision, *facts), compute)
        with mixed(like.device, settings.precision):
            return torch.cat([method.read_out(part) for part in trunk.split(at_once)]).to(like)

    return TrainingImages(images.labels.to(like.device), view, number_groups(images))


def _name_copies(images: Images) -> list[str]:
    """A name for each image, by its content and how many of the same are before it."""
    before, names = Counter[bytes](), list[str]()
    for content in image_hashes(images):
        names.append((content + (before[content] % 2**16).to_bytes(2, "big")).hex())
        before[content] += 1
    return names


def view_key(method: Method, images: Images, precision: Precision, *view: object) -> tuple[object, ...]:
    """The cache key of the trunk outputs of all training images: in the test view, or in another ``view``."""
    return (images.identity, *trunk_facts(method, precision), *(view or ("center",)))
