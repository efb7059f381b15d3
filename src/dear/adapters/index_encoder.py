"""The encoder of an image index by the features of a bundle."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from dear.adapters.feature_reader import identify_features
from dear.adapters.predictor import Predictor
from dear.data.images.transforms import to_unit
from dear.errors import SettingsError


class BundleEncoder:
    """The encoder of an image index: features of an adapted model. Texts are put into its templates.

    Attributes:
        identity: Hash of what image features depend on (`identify_features`).
    """

    def __init__(self, predictor: Predictor) -> None:
        self.predictor = predictor
        self.left_out: tuple[str, ...] = predictor.without_heads
        self.features = tuple(name for name in predictor.features if name not in self.left_out)
        self.embed: int = predictor.encode_classes(predictor.classes).shape[1]
        self.preprocess = predictor.clip.preprocess
        self.facts: Mapping[str, Any] = {}  # the index names the bundle
        self.identity = identify_features(predictor.bundle)

    @torch.no_grad()
    def images(self, views: UInt8[Tensor, "batch 3 size size"]) -> Float[Tensor, "batch feature embed"]:
        owned = [self.predictor.features.index(name) for name in self.features]
        return self.predictor.encode(to_unit(views))[:, owned].cpu()

    def texts(self, texts: Sequence[str]) -> Float[Tensor, "text feature embed"]:
        """Text features, the same for every image feature. Raises SettingsError if the method scores only the
        classes that it was trained on.
        """
        if not self.predictor.method.open_vocabulary:
            raise SettingsError(
                f"this bundle's {self.predictor.method.name} has text features for its classes only: "
                "search by an image."
            )
        return self.predictor.encode_classes(texts).cpu()[:, None].expand(-1, len(self.features), -1)
