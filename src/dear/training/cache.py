"""What runs compute of images and class names, kept in memory for the next ones."""

from collections import Counter
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from contextlib import closing
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dear.backbone.device import mixed, precision_for
from dear.backbone.names import Precision
from dear.data.dataset import Images
from dear.data.fewshot import leave_subsets
from dear.data.images.forms import HASH_BYTES
from dear.data.images.photos import LoadedImages, image_hashes
from dear.data.images.transforms import load_test_views, prefetch
from dear.methods.base import Method, Readout
from dear.methods.optional import read_out, readout_key
from dear.methods.registry import frozen_clip
from dear.progress import Progress, silent
from dear.text import fingerprint

CACHE_BYTES = 2 * 2**30
Part = Literal["trunk", "target", "text"]
ITEMS = ".items"
"""End of the name of a tensor that says which images the rows of another are of."""


class Cache:
    """Tensors in named parts that share one bound in bytes; those that no longer fit are computed each time.

    - "trunk": trunk outputs, by data set, weights, layer, and batch or view;
    - "target": the frozen features that losses compare with;
    - "text": frozen text features, by class names and templates;
    - readouts (`HasReadout`, or the class token after the last layer), by the content of each image: so
      images that an earlier fit has read need not be decoded and encoded again. Only `fit` keeps them, in
      place of trunk outputs where they are small. Their last digits depend on the images that went through
      the tower together.

    All but readouts belong to the group that was begun last (a data set, for example). Other groups are
    evicted to make room, the oldest first. Entries of the current one are evicted only for a readout: in
    repeated passes over a group, the oldest would always be gone before it is needed. Readouts stay, for a
    fit to save.

    Attributes:
        progress: Called while all training images are encoded.
        images: The images of which something was read by their content.
        encoded: Those of which something was not known before.
    """

    def __init__(self, limit_bytes: int = CACHE_BYTES, readouts: Mapping[str, Tensor] | None = None) -> None:
        """``readouts`` are those that an earlier fit has saved; None keeps none."""
        self.limit, self.bytes = limit_bytes, 0
        self.progress: Progress = silent
        self._groups: dict[Hashable, dict[tuple[Part, Hashable], Tensor]] = {None: {}}
        self._current = self._groups[None]
        self.images, self.encoded = set[bytes](), set[bytes]()
        self._keeps_readouts = readouts is not None
        self._readouts = dict[str, dict[bytes, Tensor]]()
        self._used, self._hashes = dict[str, dict[bytes, None]](), dict[str, dict[int, bytes]]()
        self.add_readouts(readouts or {})

    def add_readouts(self, readouts: Mapping[str, Tensor]) -> None:
        """Take what `used_readouts` gave. Raises ValueError for anything else."""
        for name, rows in readouts.items():
            if name + ITEMS in readouts:
                for item, row in zip(readouts[name + ITEMS].tolist(), rows, strict=True):
                    self._keep_readout(name, bytes(item), row)

    def begin(self, group: Hashable) -> None:
        """Start a group that new entries belong to; it becomes the youngest."""
        self._current = self._groups.pop(group, {})
        self._groups[group] = self._current

    def find(self, part: Part, key: Hashable) -> Tensor | None:
        """The tensor of a key, if it is cached."""
        found = (group[part, key] for group in self._groups.values() if (part, key) in group)
        return next(found, None)

    def get(self, part: Part, key: Hashable, compute: Callable[[], Tensor]) -> Tensor:
        """The tensor of a key, computed if it is not cached."""
        if (found := self.find(part, key)) is not None:
            return found
        tensor = compute()
        if self._make_room(tensor):
            self._current[part, key] = tensor
        return tensor

    def _make_room(self, tensor: Tensor, *, for_readout: bool = False) -> bool:
        """Count the bytes of a tensor, after others are evicted for it. False if it does not fit."""
        size = _bytes(tensor)
        if size > self.limit:
            return False
        for name in [*self._groups] if for_readout else [*self._groups][:-1]:
            if self.bytes + size > self.limit:
                self.bytes -= sum(map(_bytes, self._groups[name].values()))
                self._groups[name].clear()
                if self._groups[name] is not self._current:
                    del self._groups[name]
        has_room = self.bytes + size <= self.limit
        self.bytes += size * has_room
        return has_room

    def _keep_readout(self, name: str, item: bytes, values: Tensor) -> None:
        readouts = self._readouts.setdefault(name, {})
        if item not in readouts and self._make_room(values, for_readout=True):
            readouts[item] = values

    def used_readouts(self) -> dict[str, Tensor]:
        """The readouts that were used, and of which images they are."""
        return self._as_tensors(self._used)

    def all_readouts(self) -> dict[str, Tensor]:
        """All readouts, those of earlier fits too, and of which images they are."""
        return self._as_tensors(self._readouts)

    def _as_tensors(self, items: Mapping[str, Collection[bytes]]) -> dict[str, Tensor]:
        tensors = dict[str, Tensor]()
        for name, used in items.items():
            kept = {item: self._readouts[name][item] for item in used if item in self._readouts[name]}
            if kept:
                tensors[name] = torch.stack([*kept.values()])
                tensors[name + ITEMS] = torch.tensor([[*item] for item in kept], dtype=torch.uint8)
        return tensors

    def keeps_readouts_of(self, method: Method, images: Images) -> bool:
        """True for images with a content (`image_hashes`) and a method that reads little of each."""
        base, _ = leave_subsets(images, torch.arange(0))
        is_small = readout_key(method) or method.image_from > method.clip.image.depth
        return self._keeps_readouts and isinstance(base, LoadedImages) and bool(is_small)

    def number_images(self, images: Images, indices: Int[Tensor, "item"] | None = None) -> list[bytes]:
        """The content of each image, and how many of the same are before it: their random views differ."""
        indices = torch.arange(len(images)) if indices is None else indices
        base, in_base = leave_subsets(images, indices)
        hashes, numbers = self._hashes.setdefault(base.identity, {}), in_base.tolist()
        missing = [number for number in dict.fromkeys(numbers) if number not in hashes]
        hashes.update(zip(missing, image_hashes(base, missing), strict=True))
        before, items = Counter[bytes](), list[bytes]()
        for item in (hashes[number] for number in numbers):
            items.append(item + (before[item] % 2**16).to_bytes(2, "big"))
            before[item] += 1
        return items

    @torch.no_grad()
    def read_images(
        self,
        method: Method,
        images: Images,
        indices: Int[Tensor, "item"],
        precision: Precision,
        view: tuple[object, ...] = (),
        load: Callable[[Int[Tensor, "item"]], Tensor] | None = None,
        title: str = "",
    ) -> Readout:
        """The readouts of images by their content, in the test view or in another one: ``load`` gives it by
        index, and ``view`` is what it depends on. The class token after the last layer is kept too. Progress
        is told under ``title``, if there is one.
        """
        clip, items = method.clip, self.number_images(images, indices)
        if not view:  # the same for copies
            items = [item[:HASH_BYTES] for item in items]
        base, _ = leave_subsets(images, indices)
        facts = (precision_for(clip, precision), getattr(base, "short_side", None), *view)
        methods = [method, *([] if method.image_from > clip.image.depth else [frozen_clip(clip)])]
        names = [_readout_name(each, *facts) for each in methods]
        kept = [self._readouts.setdefault(name, {}) for name in names]
        pairs = zip(items, indices.tolist(), strict=True)
        missing = {item: index for item, index in pairs if any(item not in readouts for readouts in kept)}
        numbers, encoded = torch.tensor([*missing.values()], dtype=torch.int64), list[list[Tensor]]()
        for name in names:
            self._used.setdefault(name, {}).update(dict.fromkeys(items))
        parts = numbers.split(clip.image.images_at_once) if missing else ()
        load = load or (lambda part: load_test_views(images, part, clip.preprocess))
        with closing(prefetch(load, parts, clip.image.projection.device)) as loaded:
            for pixels in loaded:
                of_images = _encode(methods, pixels, precision)
                for item, of_methods in zip([*missing][len(encoded) :], of_images, strict=False):
                    for name, readout in zip(names, of_methods, strict=True):  # now: there may be a Ctrl-C
                        self._keep_readout(name, item, readout)
                encoded += of_images
                if title:
                    self.progress(title, len(encoded), len(missing))
        new = dict(zip(missing, encoded, strict=True))
        rows = [new[item][0] if item in new else kept[0][item] for item in items]
        self.images |= {item[:HASH_BYTES] for item in items}
        self.encoded |= {item[:HASH_BYTES] for item in missing}
        return torch.stack(rows).to(clip.image.projection)


def _bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _encode(
    methods: Sequence[Method], pixels: Float[Tensor, "item 3 size size"], precision: Precision
) -> list[list[Tensor]]:
    """What methods read of each image, from the trunk outputs of the first of them."""
    first, like = methods[0], methods[0].clip.image.projection
    with mixed(like.device, precision):
        trunk = first.image_trunk(pixels).to(like)
        of_methods = [
            read_out(method, method.continue_trunk(trunk, first.image_from)).to(like).cpu()
            for method in methods
        ]
    return [*map(list, zip(*of_methods, strict=True))]


def _readout_name(method: Method, *facts: object) -> str:
    """The name of what a method reads, by what that depends on beside the images."""
    clip, like = method.clip, method.clip.image.projection
    backbone = clip.identity.sha256, clip.preprocess, like.dtype, like.device.type, torch.__version__
    return fingerprint(*map(str, (*backbone, readout_key(method) or method.image_from, *facts)))


def trunk_facts(
    method: Method, precision: str = "auto", layer: int | None = None
) -> tuple[str, int, str, str, str]:
    """What trunk outputs depend on besides the images: weights, layer (by default the method's), precision
    and device.
    """
    like = method.clip.image.projection
    layer = method.image_from if layer is None else layer
    return method.clip.identity.sha256, layer, str(like.dtype), str(like.device), precision
