"""The ensemble [ours]: a weighted sum of linear classifiers of the frozen image feature."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from dear.backbone.clip import Clip
from dear.methods.base import ImageFeatures, Logits, Method, TextFeatures, TrainingImages, Trunk
from dear.methods.ensemble import METHOD, EnsembleSettings
from dear.methods.ensemble.fitting import add_names, fit
from dear.methods.optional import LeavesOut, ResizesTensors, WeighsFeatures
from dear.methods.shared import (
    name_hashes,
    order_by_name,
    require_current_text,
    require_distinct,
    rows_by_name,
)


class Ensemble(Method, LeavesOut, ResizesTensors, WeighsFeatures):
    """Nothing is trained in steps. With f the unit feature of an image, t_k the text feature of class k, and
    linear classifiers W_j f + b_j (`dear.methods.ensemble.members`), fitted to the images in their test
    views: class means, linear discriminants and logistic regressions, and further discriminants, fitted to
    random views too,

        s_k = beta f t_k / tau + sum over j of alpha_j (W_j f + b_j)_k

    with weights that are at least 0. These minimize the cross-entropy of images that were left out, with
    their groups, of what the classifiers were fitted to, plus a small multiple of their squares. So the text
    counts by what it is worth for these classes, and a classifier that does not help gets no weight. The
    scores are the exact sum of two terms: the name of the class, and the images of it.

    Where no image can be left out, because each class has one, the means have the weight 1 and the text the
    one with which it tells these images best.

    A class n by its name alone, beside classes k with images, has

        s_n = f t_n / tau + log sum exp s_k - log sum exp (f t_k / tau) - threshold

    the odds against all of them that it has by text, less a threshold, with which names that do not set it
    take at most one in 200 left-out images of the others (`measure_names`). Without any class with images,
    scores are those by text.

    Source: the weights are those of stacking with non-negative coefficients (Breiman, Machine Learning 24,
    1996), under the log-loss as AutoGluon has them.
    """

    declaration = METHOD
    features = ("cls", "image")
    settings: EnsembleSettings
    trained: Int[Tensor, "trained"]  # identities of the classes with images
    text_weight: Float[Tensor, ""]  # beta
    parts: Float[Tensor, "feature"]
    threshold: Float[Tensor, ""]
    weight: nn.Parameter  # trained embed
    bias: nn.Parameter  # trained

    def __init__(
        self, clip: Clip, generator: torch.Generator, settings: EnsembleSettings | None = None
    ) -> None:
        super().__init__(clip, generator, settings or EnsembleSettings())
        like = clip.image.projection
        self.register_buffer("text_weight", like.new_ones(()))
        self.register_buffer("parts", like.new_tensor([1.0, 0.0]))
        self.register_buffer("threshold", like.new_zeros(()))
        self._resize(0)

    def _resize(self, trained: int) -> None:
        self._prepared_for: Tensor | None = None
        like = self.clip.image.projection
        self.register_buffer("trained", torch.zeros(trained, dtype=torch.long, device=like.device))
        self.weight = nn.Parameter(like.new_zeros(trained, self.clip.image.embed_dim))
        self.bias = nn.Parameter(like.new_zeros(trained))

    @torch.no_grad()
    def set_classes(self, classnames: Sequence[str], templates: Sequence[str]) -> None:
        """Set the classes; the first ones set are those that it is trained on."""
        is_first = not self.classnames
        super().set_classes(classnames, templates)
        if is_first:
            self._resize(len(classnames))
            self.trained.copy_(name_hashes(classnames))

    @torch.no_grad()
    def before_training(self, images: TrainingImages) -> None:
        """Fit everything to the test view of each image, and some of it to random views."""
        numbers = (None, *range(self.settings.views))
        features, *views = (self.frozen_image(images.view(number)).double() for number in numbers)
        present, labels = images.labels.unique(return_inverse=True)
        text = float(self.clip.scale) * self.frozen_text.double()[present]
        order = order_by_name(self.classnames).to(present.device)[present]
        groups = None if images.groups is None else images.groups.to(labels.device)
        fitted = fit(features, labels, text, order, groups, self.settings.penalty, views)
        self._resize(len(present))
        self.trained.copy_(name_hashes(self.classnames)[present.cpu()])
        self.weight.copy_(fitted.weight)
        self.bias.copy_(fitted.bias)
        self.text_weight.fill_(fitted.text_weight)
        self.parts.copy_(torch.tensor(fitted.parts))
        self.threshold.fill_(fitted.name_cost.threshold)
        self.fitted = fitted

    def image_features(self, trunk: Trunk) -> ImageFeatures:
        """The frozen feature, once for the names of classes and once for their images."""
        frozen = self.frozen_image(trunk)
        return torch.stack([frozen, frozen])

    def text_features(self) -> TextFeatures:
        """The frozen text features."""
        self._prepare()
        return self.frozen_text

    def _prepare(self) -> None:
        """Find which of the current classes have images, and how many."""
        rows = rows_by_name(self.trained, self.classnames)
        self.has_images, self.row = rows >= 0, rows.clamp(min=0)
        self.count = int(self.has_images.sum())
        self._prepared_for = self.frozen_text

    def evidence(
        self, image: ImageFeatures, text: TextFeatures, *, decoupled: bool = False
    ) -> Float[Tensor, "feature batch class"]:
        """The terms of the scores: of the names, and of the images, which count nothing if ``decoupled``.
        Raises SettingsError for the text of other classes than those set.
        """
        require_current_text(self, text)
        if self._prepared_for is not self.frozen_text:
            self._prepare()
        image = image.contiguous()  # as products of others differ in the last bits
        by_text = self.clip.scale * image[0] @ text.T
        if decoupled or not self.count:
            return torch.stack([by_text, torch.zeros_like(by_text)])
        by_images = (image[1] @ self.weight.T + self.bias)[:, self.row]
        weighted = torch.stack([self.text_weight * by_text, by_images])
        if self.count == len(self.row):
            return weighted
        return add_names(weighted, by_text, self.has_images, self.threshold)

    def logits(self, image: ImageFeatures, text: TextFeatures, *, decoupled: bool = False) -> Logits:
        """The sum of the terms."""
        return self.evidence(image, text, decoupled=decoupled).sum(dim=0)

    def describe_names(self) -> dict[str, Any]:
        return asdict(self.fitted.name_cost)

    def fusion_weights(self) -> dict[str, float]:
        """The share of names and of images in the scores of left-out images: of the standard deviation over
        classes.
        """
        return dict(zip(self.features, self.parts.tolist(), strict=True))

    def stored_tensors(self) -> dict[str, Tensor]:
        """The classifier, the weight of the text, and the identities of the classes."""
        buffers = ("trained", "text_weight", "parts", "threshold")
        return super().stored_tensors() | {name: getattr(self, name) for name in buffers}

    def resize_to(self, tensors: Mapping[str, Tensor]) -> None:
        """As many classes as a trained method has images of. Raises SettingsError for a class twice."""
        require_distinct(tensors.get("trained", self.trained))
        self._resize(len(tensors["weight"]) if "weight" in tensors else 0)
