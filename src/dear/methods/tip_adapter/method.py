"""Tip-Adapter (Zhang et al., ECCV 2022): training images vote for their classes, the nearer the more."""

from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import normalize

from dear.backbone.clip import Clip
from dear.errors import SettingsError
from dear.methods.base import ImageFeatures, Logits, Method, TextFeatures, TrainingImages
from dear.methods.optional import ResizesTensors, UsesAllImages
from dear.methods.tip_adapter import METHOD, TipAdapterSettings

EPS = 1e-4
"""AdamW's epsilon, as in the code: gradients of the keys are small."""
ENTRIES_AT_ONCE = 2**24
"""Entries of the table of keys and classes that are made at a time."""


class TipAdapter(Method, ResizesTensors, UsesAllImages):
    """A cache of the training images' features (keys) and classes (values), added to zero-shot scores:

        scale * f w_c + alpha * sum over the keys k of class c of exp(-beta (1 - f k))

    Nothing is trained, or with ``tuned`` the keys are (Tip-Adapter-F), starting from those of the cache.
    Both towers are unchanged. Before training the cache is empty, and scores are those of zero-shot CLIP.

    Source: arXiv 2111.03930; github.com/gaopengcuhk/Tip-Adapter at d0e2d6f, main.py and utils.py. As in the
    code: a key is the mean of an image's features in 10 random views, normalized after the mean only, and
    cosines are multiplied by 100, whatever the backbone's temperature.

    Differs from the code: alpha and beta are settings. The code searches both, on validation images or, for
    ImageNet, on test images; and it keeps the tuned keys of the epoch that is best on test images. The
    learning rate follows its cosine by epochs, in the code by steps.
    """

    declaration = METHOD
    settings: TipAdapterSettings
    keys: nn.Parameter
    labels: Int[Tensor, "item"]

    def __init__(
        self, clip: Clip, generator: torch.Generator, settings: TipAdapterSettings | None = None
    ) -> None:
        super().__init__(clip, generator, s := settings or TipAdapterSettings(), scale=s.scale)
        self._fill(clip.image.projection.new_zeros(0, clip.image.embed_dim), torch.zeros(0).long())

    def _fill(self, keys: Float[Tensor, "item embed"], labels: Int[Tensor, "item"]) -> None:
        self.keys = nn.Parameter(keys, requires_grad=self.settings.tuned)
        self.register_buffer("labels", labels.to(keys.device))

    @torch.no_grad()
    def before_training(self, images: TrainingImages) -> None:
        """Fill the cache, which replaces its content."""
        views = [self.clip.image.finish(images.view(view)[:, 0]) for view in range(self.settings.views)]
        self._fill(normalize(torch.stack(views).mean(dim=0), dim=-1), images.labels.clone())

    def logits(self, image: ImageFeatures, text: TextFeatures, *, decoupled: bool = False) -> Logits:
        """Zero-shot scores and those of the cache."""
        del decoupled
        s, features = self.settings, image[0]
        similarities = torch.exp(-s.beta * (1 - features @ self.keys.T))
        at_once = max(1, ENTRIES_AT_ONCE // max(1, len(self.labels)))
        classes = torch.arange(len(text), device=text.device).split(at_once)
        votes = [similarities @ (self.labels[:, None] == part).to(similarities.dtype) for part in classes]
        return self.scale * features @ text.T + s.alpha * torch.cat(votes, dim=1)

    def parameter_groups(self) -> list[dict[str, Any]]:
        return [group | {"eps": EPS} for group in super().parameter_groups()]

    def stored_tensors(self) -> dict[str, Tensor]:
        """The cache, trained or not."""
        return {"keys": self.keys, "labels": self.labels}

    def resize_to(self, tensors: Mapping[str, Tensor]) -> None:
        """Take the size of the stored cache. Raises SettingsError for a label that is not a class's."""
        labels = tensors.get("labels", self.labels)
        if labels.numel() and not 0 <= int(labels.min()) <= int(labels.max()) < len(self.classnames):
            last = len(self.classnames) - 1
            raise SettingsError(f"its tensor 'labels' holds numbers other than 0 to {last}")
        items = tensors["labels"].numel() if "labels" in tensors else 0
        self._fill(self.keys.new_zeros(items, self.keys.shape[1]), self.labels.new_zeros(items))
