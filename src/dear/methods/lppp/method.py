"""LP++ (Huang et al., CVPR 2024): a linear probe, and a weight of each class's text feature beside it."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import one_hot

from dear.backbone.clip import Clip
from dear.methods.base import ImageFeatures, Logits, Method, TextFeatures, TrainingImages
from dear.methods.lppp import METHOD, LpppSettings
from dear.methods.optional import UsesAllImages
from dear.methods.shared import linear_values

MOMENTUM, TEXT_INTERVAL, TEXT_START = 0.9, 10, 250.0
"""Momentum of the steps of W and b; how many of them come before one of alpha; the factor of its start."""


class LPpp(Method, UsesAllImages):
    """A linear classifier whose class vectors are blends of image and text: with unit features f and w_c

        score of class c = f W_c + b_c + alpha_c f w_c

    by gradient descent on the mean cross-entropy of all images, in one random view each. Starts and rates
    follow from the N images: W_c starts as the sum of its class's features; each alpha_c as 250 times the
    mean over classes of the mean cosine of a class's images with its w_c; W and b have the rate
    4 N / (largest eigenvalue of F^T F), alpha has N / (4 max_c sum_i (f_i w_c)^2).

    Source: arXiv 2404.02285; github.com/FereshteShakeri/FewShot-CLIP-Strong-Baseline at f81054f,
    methods/linear_probe_p2.py. As in the code: b starts at random, W at sums (not means) of features, and
    alpha takes a step after every tenth of W and b, by the sum of its gradients in all steps so far, which
    are never cleared.

    Differs from the code: the last iterate is tested, there the one that is best on validation images, of
    which it has as many as training images. Nothing is cast to half precision. The cosine of a class without
    images counts in no start [ours]; the code always has images of all.
    """

    declaration = METHOD
    settings: LpppSettings
    weight: nn.Parameter
    bias: nn.Parameter
    text_weights: nn.Parameter
    first_bias: Float[Tensor, "class"]

    def __init__(self, clip: Clip, generator: torch.Generator, settings: LpppSettings | None = None) -> None:
        super().__init__(clip, generator, settings or LpppSettings())
        self.generator = generator

    @torch.no_grad()
    def set_classes(self, classnames: Sequence[str], templates: Sequence[str]) -> None:
        """Set the classes; each gets its weights. Raises SettingsError for other classes afterwards."""
        first = not self.classnames
        super().set_classes(classnames, templates)
        if first:
            like, embed = self.clip.image.projection, self.clip.image.embed_dim
            self.first_bias = linear_values(like, self.generator, embed, len(classnames))[1]
            self.weight = nn.Parameter(like.new_zeros(len(classnames), embed))
            self.bias = nn.Parameter(self.first_bias.clone())
            self.text_weights = nn.Parameter(torch.ones_like(self.bias) * self.scale)

    @torch.no_grad()
    def before_training(self, images: TrainingImages) -> None:
        """Descend, in float64 and from the same start each time."""
        features, classes = self.frozen_image(images.view(0)).double(), len(self.bias)
        cosines = features @ self.frozen_text.double().T
        targets = one_hot(images.labels, classes).to(features)
        counts = targets.sum(dim=0)
        own_cosines = ((cosines * targets).sum(dim=0) / counts)[counts > 0]
        rate = 4 * len(features) / torch.linalg.eigvalsh(features.T @ features)[-1]
        text_rate = len(features) / (4 * cosines.square().sum(dim=0).max())
        weight, bias = targets.T @ features, self.first_bias.to(features)
        text_weights = TEXT_START * own_cosines.mean().expand(classes)
        velocity, bias_velocity = torch.zeros_like(weight), torch.zeros_like(bias)
        text_gradient = torch.zeros_like(bias)
        for step in range(1, self.settings.iterations + 1):
            scores = features @ weight.T + bias + text_weights * cosines
            errors = (scores.softmax(dim=1) - targets) / len(features)
            velocity = MOMENTUM * velocity + errors.T @ features
            bias_velocity = MOMENTUM * bias_velocity + errors.sum(dim=0)
            text_gradient = text_gradient + (errors * cosines).sum(dim=0)
            weight, bias = weight - rate * velocity, bias - rate * bias_velocity
            if step % TEXT_INTERVAL == 0:
                text_weights = text_weights - text_rate * text_gradient
        self.weight.copy_(weight)
        self.bias.copy_(bias)
        self.text_weights.copy_(text_weights)

    def logits(self, image: ImageFeatures, text: TextFeatures, *, decoupled: bool = False) -> Logits:
        """Scores of the classifier and, weighted, those of the text features."""
        del decoupled
        return image[0] @ self.weight.T + self.bias + self.text_weights * (image[0] @ text.T)
