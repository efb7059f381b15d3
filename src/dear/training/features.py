"""What methods read of images, kept by the content of the images: from one fit to the next."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dear.backbone.choice import Precision
from dear.backbone.precision import mixed, precision_for
from dear.data.dataset import Images, fingerprint
from dear.data.fewshot import leave_subsets
from dear.data.images.photos import HASH_BYTES, LoadedImages, image_hashes
from dear.data.images.transforms import load_test_views, to_unit
from dear.methods.base import Method
from dear.methods.registry import frozen_clip
from dear.training.trunks import full_identity

ITEMS = ".items"
"""End of the name of a tensor that says which images the rows of another are of."""


class FeatureStore:
    """What methods read of each image, by its content: `Method.read_out`, or the class token after the
    last layer. So images that an earlier fit has read need not be decoded and encoded again.

    On a CPU each image goes through the tower alone, because the last digits depend on those beside it: what
    is read of an image is then the same in any set of images.

    Attributes:
        images: The images that took part.
        encoded: Those of which something was not stored before.
    """

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        """``tensors`` are those of an earlier store."""
        self.images, self.encoded = set[bytes](), set[bytes]()
        self._used, self._hashes = dict[str, dict[bytes, Tensor]](), dict[str, dict[int, bytes]]()
        self._stored = {
            group: dict(zip(map(bytes, tensors[group + ITEMS].tolist()), rows, strict=True))
            for group, rows in tensors.items()
            if group + ITEMS in tensors
        }

    def tensors(self) -> dict[str, Tensor]:
        """What was read in this fit, and of which images."""
        found = dict[str, Tensor]()
        for group, features in self._used.items():
            found[group] = torch.stack([*features.values()])
            found[group + ITEMS] = torch.tensor([[*item] for item in features], dtype=torch.uint8)
        return found

    def takes(self, method: Method, images: Images) -> bool:
        """True for images with a content (`image_hashes`) and a method that reads little of each."""
        base, _ = leave_subsets(images, torch.arange(0))
        is_small = method.readout_key or method.image_from > method.clip.image.depth
        return isinstance(base, LoadedImages) and bool(is_small)

    def number(self, images: Images, indices: Int[Tensor, "item"] | None = None) -> list[bytes]:
        """The content of each image, and how many of the same are before it: their random views differ."""
        indices = torch.arange(len(images)) if indices is None else indices
        base, in_base = leave_subsets(images, indices)
        hashes, numbers = self._hashes.setdefault(full_identity(base), {}), in_base.tolist()
        missing = [number for number in dict.fromkeys(numbers) if number not in hashes]
        hashes.update(zip(missing, image_hashes(base, missing), strict=True))
        before, items = Counter[bytes](), list[bytes]()
        for item in (hashes[number] for number in numbers):
            items.append(item + (before[item] % 2**16).to_bytes(2, "big"))
            before[item] += 1
        return items

    @torch.no_grad()
    def read(
        self,
        method: Method,
        images: Images,
        indices: Int[Tensor, "item"],
        precision: Precision,
        view: tuple[object, ...] = (),
        load: Callable[[Int[Tensor, "item"]], Tensor] | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> Float[Tensor, "item part size"]:
        """What a method reads of images, in the test view or in another one: ``load`` gives it by index, and
        ``view`` is what it depends on. With the test view the class token after the last layer is kept too.
        """
        clip, items = method.clip, self.number(images, indices)
        if not view:  # the same for copies
            items = [item[:HASH_BYTES] for item in items]
        base, _ = leave_subsets(images, indices)
        facts = (precision_for(clip, precision), getattr(base, "short_side", None), *view)
        methods = [method, *([] if view or method.image_from > clip.image.depth else [frozen_clip(clip)])]
        stored = [self._stored.setdefault(_group(each, *facts), {}) for each in methods]
        pairs = zip(items, indices.tolist(), strict=True)
        missing = {item: index for item, index in pairs if any(item not in features for features in stored)}
        parts = torch.tensor([*missing.values()], dtype=torch.int64).split(clip.image.images_at_once)
        encoded = list[list[Tensor]]()
        for part in parts if missing else ():
            pixels = load(part) if load else to_unit(load_test_views(images, part, clip.preprocess))
            encoded += self._encode(methods, pixels, precision)
            if progress is not None:
                progress(len(encoded), len(missing))
        for item, of_image in zip(missing, encoded, strict=True):
            for features, values in zip(stored, of_image, strict=True):
                features[item] = values
        for each, features in zip(methods, stored, strict=True):
            self._used.setdefault(_group(each, *facts), {}).update((item, features[item]) for item in items)
        self.images |= {item[:HASH_BYTES] for item in items}
        self.encoded |= {item[:HASH_BYTES] for item in missing}
        return torch.stack([stored[0][item] for item in items]).to(clip.image.projection)

    def _encode(
        self, methods: Sequence[Method], pixels: Float[Tensor, "item 3 size size"], precision: Precision
    ) -> list[list[Tensor]]:
        """What methods read of each image, from the trunk outputs of the first of them."""
        first, like = methods[0], methods[0].clip.image.projection
        read = list[list[Tensor]]()
        with mixed(like.device, precision):
            for views in pixels.to(like.device).split(1 if like.device.type == "cpu" else len(pixels)):
                trunk, of_methods = first.image_trunk(views).to(like), list[Tensor]()
                for method in methods:
                    out = method.read_out(method.continue_trunk(trunk, first.image_from))
                    of_methods.append(out.to(like).cpu())
                read += map(list, zip(*of_methods, strict=True))
        return read


def _group(method: Method, *facts: object) -> str:
    """The name of what a method reads, by what that depends on beside the images."""
    clip, like = method.clip, method.clip.image.projection
    backbone = clip.identity.sha256, clip.preprocess, like.dtype, like.device.type, torch.__version__
    return fingerprint(*map(str, (*backbone, method.readout_key or method.image_from, *facts)))
