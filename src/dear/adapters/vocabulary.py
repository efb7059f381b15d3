"""Candidate classes of a predictor, and how their scores are steered without a fit."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Self

import torch
from jaxtyping import Float
from torch import Tensor

from dear.backbone.device import mixed
from dear.backbone.names import Precision
from dear.errors import SettingsError, UnknownNameError
from dear.methods.base import Method
from dear.methods.optional import HasFusion, WeighsFeatures


@dataclass(frozen=True)
class Vocabulary:
    """Candidate classes: a method set to them, their text features, whether features are decoupled (for
    classes that it was not trained on), and the precision of features.

    Attributes:
        unchanged: The same by the bundle's own weights, if this is `steered`.
    """

    classes: tuple[str, ...]
    method: Method
    text: Float[Tensor, "class embed"]
    decoupled: bool
    precision: Precision
    unchanged: "Vocabulary | None" = None

    @classmethod
    @torch.no_grad()
    def of(cls, method: Method, precision: Precision, *, decoupled: bool = False) -> Self:
        """The classes that a method is set to."""
        like = method.clip.image.projection
        with mixed(like.device, precision):
            text = method.text_features().to(like)
        return cls(tuple(method.classnames), method, text, decoupled, precision)

    def steered(self, fusion: Mapping[str, float] | None = None, *, decoupled: bool = False) -> Self:
        """The same classes, scored otherwise; without arguments as they are.

        ``fusion`` are other weights of features, by name: they replace the learned ones, a feature that is
        not named keeps its own, and all are divided by their sum. 0 switches a feature off. ``decoupled``
        scores by the class feature alone. Raises SettingsError for both together, for a method without
        fusion weights or, if decoupled, with nothing to decouple, and for weights that are negative or all 0;
        UnknownNameError for other features.
        """
        if fusion is not None and decoupled:
            raise SettingsError("fusion weights do not go with decoupled, which is the class feature alone.")
        if decoupled:
            if not self.method.can_be_decoupled:
                raise SettingsError(f"{self.method.name} has the class feature alone: nothing to decouple.")
            return replace(self, decoupled=True, unchanged=self.unchanged or self)
        if fusion is None:
            return self
        method = with_weights(self.method, fusion)
        return replace(self, method=method, unchanged=self.unchanged or self)

    def weights(self) -> dict[str, float] | None:
        """The weight of each feature by name; None if the method has none, or scores by other rules."""
        names = named_features(self.method)
        if self.decoupled:
            return {name: float(name == names[0]) for name in names} if self._is_class_alone() else None
        if not isinstance(self.method, WeighsFeatures):
            return None
        if isinstance(self.method, HasFusion) and not can_be_steered(self.method):
            return None
        return dict(zip(names, self.method.fusion_weights().values(), strict=True))

    @torch.no_grad()
    def _is_class_alone(self) -> bool:
        """False if the scores of a class outside the package depend on other features than the first."""
        features = self.text.new_ones(len(self.method.features), 1, self.text.shape[1])
        alone = features * (torch.arange(len(features)) == 0).to(features)[:, None, None]
        return torch.equal(self.logits(features), self.logits(alone))

    def image_features(
        self, pixels: Float[Tensor, "batch channel height width"], *, frozen: bool = False
    ) -> Float[Tensor, "feature batch embed"]:
        """Unit image features of views in [0, 1]; with ``frozen`` that of the frozen backbone after them."""
        like = self.method.clip.image.projection
        with mixed(like.device, self.precision):
            readout = self.method.read_out(self.method.image_trunk(pixels.to(like)))
            image = self.method.image_features(readout)
            if frozen:
                image = torch.cat([image, self.method.frozen_image(readout)[None]])
            return image.to(like)

    def logits(self, image: Float[Tensor, "feature batch embed"]) -> Float[Tensor, "batch class"]:
        """Scores of the classes, before the temperature."""
        return self.method.logits(image, self.text, decoupled=self.decoupled)

    def evidence(self, image: Float[Tensor, "feature batch embed"]) -> Float[Tensor, "feature batch class"]:
        """The part of each feature in the scores."""
        return self.method.evidence(image, self.text, decoupled=self.decoupled)


def named_features(method: Method) -> tuple[str, ...]:
    """The features of a method by the names that users see: "class", then the attributes."""
    return tuple("class" if name == "cls" else name for name in method.features)


@torch.no_grad()
def can_be_steered(method: Method) -> bool:
    """True if other weights of the features change the scores. A class that is derived from a method with
    fusion weights may score in its own way.
    """
    if not isinstance(method, HasFusion):
        return False
    like, count = method.clip.image.projection, len(method.features)
    features = torch.eye(count, method.clip.image.embed_dim).to(like)  # feature k is the k-th unit vector
    first, last = (
        method.with_fusion([float(k == one) for k in range(count)]).logits(features.unsqueeze(1), features)
        for one in (0, count - 1)
    )
    return not torch.equal(first, last)


def with_weights(method: Method, fusion: Mapping[str, float]) -> Method:
    """A method with the weights of ``fusion`` in place of its own, all divided by their sum. Raises as
    `Vocabulary.steered`.
    """
    names = named_features(method)
    if not isinstance(method, HasFusion):
        raise SettingsError(
            f"{method.name} has no fusion weights to change: the method dear has (fit with --method dear)."
        )
    if not can_be_steered(method):
        raise SettingsError(
            f"the scores of {method.name} do not depend on fusion weights: nothing to change."
        )
    for name in fusion:
        if name not in names:
            raise UnknownNameError("feature", name, names)
    own = method.fusion_weights().values()
    weights = [float(fusion.get(name, weight)) for name, weight in zip(names, own, strict=True)]
    if not all(0 <= weight < float("inf") for weight in weights) or not any(weights):
        raise SettingsError("fusion weights must be at least 0, and one of them above 0.")
    total = sum(weights)
    steered: Method = method.with_fusion([weight / total for weight in weights])
    return steered
