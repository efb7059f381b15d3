"""What is computed of images and class names for later runs: tensors in memory, and readouts of images on the
disk.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Literal

import torch
from jaxtyping import Float, Int
from safetensors.torch import load, save
from torch import Tensor

from dear.backbone.clip import Clip
from dear.backbone.device import mixed, precision_for
from dear.backbone.names import Precision
from dear.data.dataset import Images
from dear.data.fewshot import leave_subsets
from dear.data.images.hashes import FEATURE_BYTES, recall_features, remember_features
from dear.data.images.photos import LoadedImages, image_hashes
from dear.data.images.transforms import load_test_views, prefetch
from dear.errors import warn
from dear.methods.base import Method, Readout
from dear.methods.registry import frozen_clip
from dear.progress import Progress, silent
from dear.text import fingerprint

CACHE_BYTES = 2 * 2**30
Part = Literal["trunk", "target", "text"]
TOGETHER = 16
"""How many images are read together on a CPU, at most."""


class Cache:
    """Tensors in memory, in named parts that share one bound in bytes; those that no longer fit are computed
    each time.

    - "trunk": trunk outputs, by data set, weights, layer, and batch or view;
    - "target": the frozen features that losses compare with;
    - "text": frozen text features, by class names and templates.

    They belong to the group that was begun last (a data set, for example). Other groups are evicted to make
    room, the oldest first, and never the current one: in repeated passes over it, the oldest would always be
    gone before it is needed.

    Attributes:
        readouts: What takes the place of trunk outputs where it is smaller; None for trunk outputs alone.
        progress: Called while all training images are encoded.
    """

    def __init__(self, limit_bytes: int = CACHE_BYTES, readouts: "ReadoutStore | None" = None) -> None:
        self.limit, self.bytes, self.readouts = limit_bytes, 0, readouts
        self.progress: Progress = silent
        self._groups: dict[Hashable, dict[tuple[Part, Hashable], Tensor]] = {None: {}}
        self._current = self._groups[None]

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
        if (size := tensor.nbytes) <= self.limit:
            for group in [*self._groups][:-1]:
                if self.bytes + size > self.limit:
                    self.bytes -= sum(other.nbytes for other in self._groups.pop(group).values())
            if self.bytes + size <= self.limit:
                self._current[part, key] = tensor
                self.bytes += size
        return tensor

    def readouts_of(self, method: Method, images: Images) -> "ReadoutStore | None":
        """The readouts, for a method that reads little of each image and images that have a content."""
        base, _ = leave_subsets(images, torch.arange(0))
        is_small = method.readout_key or method.image_from > method.clip.image.depth
        return self.readouts if is_small and isinstance(base, LoadedImages) else None


class ReadoutStore:
    """What methods read of images (`Method.read_out`, or the class token after the last layer), by the
    content of each image and what encodes it. The cache folder keeps it, so that no later fit or run decodes
    and encodes this image again.

    The last digits of a product of matrices depend on the number of rows. So on a CPU as many images always
    go through the tower together, and what is read of one is the same whichever of the others are known.

    Attributes:
        folder: The cache folder. Where it cannot be written, this object keeps its readouts itself.
        draws_by_content: Whether random views before training are drawn by the content of an image, so that
            they stay the same in a data set that grows, and not by its place.
        images: The contents of all images that were read.
        encoded: Those of which something was not known before.
    """

    def __init__(self, folder: Path, *, draws_by_content: bool = False) -> None:
        self.folder, self.draws_by_content = folder, draws_by_content
        self.images, self.encoded = set[bytes](), set[bytes]()
        self._unwritten, self._new_bytes = dict[bytes, bytes](), 0

    @torch.no_grad()
    def read(
        self,
        method: Method,
        images: Images,
        indices: Int[Tensor, "item"],
        precision: Precision,
        *,
        views: Sequence[bytes] = (),
        load_views: Callable[[Int[Tensor, "item"]], Tensor] | None = None,
        progress: Callable[[int, int], None] = silent,
    ) -> Readout:
        """The readouts of images in the test view, or in the ``views`` of these names, which ``load_views``
        loads by index. The class token after the last layer is kept too.
        """
        clip, (base, _) = method.clip, leave_subsets(images, indices)
        contents = image_hashes(images, indices.tolist())
        items = [*map(bytes.__add__, contents, views)] if views else contents
        methods = [method, *([] if method.image_from > clip.image.depth else [frozen_clip(clip)])]
        facts = precision_for(clip, precision), getattr(base, "short_side", None)
        names = [_readout_name(each, *facts) for each in methods]
        rows = self._recall([names[0] + item for item in dict.fromkeys(items)])
        places = dict(zip(items, range(len(items)), strict=True))
        missing = [item for item in places if names[0] + item not in rows]
        numbers = indices[[places[item] for item in missing]]
        parts, done = numbers.split(_images_together(clip)) if missing else (), 0
        load_views = load_views or (lambda part: load_test_views(images, part, clip.preprocess))
        with closing(prefetch(load_views, parts, clip.image.projection.device)) as loaded:
            for pixels in loaded:
                part, new = missing[done : done + len(pixels)], dict[bytes, bytes]()
                for name, read in zip(names, _encode(methods, pixels, precision), strict=True):
                    new |= {name + item: save({"": row}) for item, row in zip(part, read, strict=True)}
                self._remember(new)
                rows |= new
                progress(done := done + len(part), len(missing))
        self.images.update(contents)
        self.encoded.update(contents[places[item]] for item in missing)
        return torch.stack([load(rows[names[0] + item])[""] for item in items]).to(clip.image.projection)

    def _recall(self, keys: Sequence[bytes]) -> dict[bytes, bytes]:
        unwritten = {key: self._unwritten[key] for key in keys if key in self._unwritten}
        return recall_features(self.folder, keys) | unwritten

    def _remember(self, rows: Mapping[bytes, bytes]) -> None:
        """Keep rows, unless own ones would have to go for them: in repeated passes over all of them, the
        oldest would always be gone before it is needed.
        """
        self._new_bytes += sum(map(len, rows.values()))
        if self._new_bytes > FEATURE_BYTES:
            return
        if self._unwritten or not remember_features(self.folder, rows):
            if not self._unwritten:
                warn(f"{self.folder} cannot be written: later commands encode these images again")
            self._unwritten |= rows


def _images_together(clip: Clip) -> int:
    """How many images go through the tower together: always as many on a CPU."""
    at_once = clip.image.images_at_once
    return min(TOGETHER, at_once) if clip.image.projection.device.type == "cpu" else at_once


def _encode(
    methods: Sequence[Method], pixels: Float[Tensor, "item 3 size size"], precision: Precision
) -> list[Float[Tensor, "item token width"]]:
    """What each method reads of images, from the trunk outputs of the first of them."""
    first, like, count = methods[0], methods[0].clip.image.projection, len(pixels)
    if like.device.type == "cpu":
        pixels = pixels[torch.arange(_images_together(first.clip)) % count]
    with mixed(like.device, precision):
        trunk = first.image_trunk(pixels).to(like)
        trunks = (method.continue_trunk(trunk, first.image_from) for method in methods)
        read = [method.read_out(own)[:count] for method, own in zip(methods, trunks, strict=True)]
        return [rows.to(like).cpu().contiguous() for rows in read]


def _readout_name(method: Method, *facts: object) -> bytes:
    """The name of what a method reads, by all that it depends on beside the image."""
    clip, like = method.clip, method.clip.image.projection
    backbone = clip.identity.sha256, clip.preprocess, like.dtype, like.device.type
    software = torch.__version__, torch.backends.cpu.get_cpu_capability(), torch.get_num_threads()
    read = method.readout_key or method.image_from
    return fingerprint(*map(str, (*backbone, *software, read, *facts))).encode()


def trunk_facts(
    method: Method, precision: str = "auto", layer: int | None = None
) -> tuple[str, int, str, str, str]:
    """What trunk outputs depend on besides the images: weights, layer (by default the method's), precision
    and device.
    """
    like = method.clip.image.projection
    layer = method.image_from if layer is None else layer
    return method.clip.identity.sha256, layer, str(like.dtype), str(like.device), precision
