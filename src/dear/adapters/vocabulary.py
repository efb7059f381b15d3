"""Candidate classes of an adapted model, and its scores of them."""

from dataclasses import dataclass
from typing import Self

import torch
from jaxtyping import Float
from torch import Tensor

from dear.backbone.device import mixed
from dear.backbone.names import Precision
from dear.methods.base import Method


@dataclass(frozen=True)
class Vocabulary:
    """Candidate classes: a method set to them, their text features, whether features are decoupled (for
    classes that it was not trained on), and the precision of features.
    """

    classes: tuple[str, ...]
    method: Method
    text: Float[Tensor, "class embed"]
    decoupled: bool
    precision: Precision

    @classmethod
    @torch.no_grad()
    def of(cls, method: Method, precision: Precision, *, decoupled: bool = False) -> Self:
        """The classes that a method is set to."""
        like = method.clip.image.projection
        with mixed(like.device, precision):
            text = method.text_features().to(like)
        return cls(tuple(method.classnames), method, text, decoupled, precision)

    def image_features(
        self, pixels: Float[Tensor, "batch channel height width"], *, frozen: bool = False
    ) -> Float[Tensor, "feature batch embed"]:
        """Unit image features of views in [0, 1]; with ``frozen`` that of the frozen backbone after them."""
        like = self.method.clip.image.projection
        read = self.method.with_frozen if frozen else self.method.image_features
        with mixed(like.device, self.precision):
            return read(self.method.image_trunk(pixels.to(like))).to(like)

    def logits(self, image: Float[Tensor, "feature batch embed"]) -> Float[Tensor, "batch class"]:
        """Scores of the classes, before the temperature."""
        return self.method.logits(image, self.text, decoupled=self.decoupled)

    def evidence(self, image: Float[Tensor, "feature batch embed"]) -> Float[Tensor, "feature batch class"]:
        """The part of each feature in the scores."""
        return self.method.evidence(image, self.text, decoupled=self.decoupled)
