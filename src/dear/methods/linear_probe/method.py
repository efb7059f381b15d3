"""The linear probe of CLIP's paper (Radford et al., ICML 2021): logistic regression on frozen features."""

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import normalize

from dear.methods.base import (
    ImageFeatures,
    Labels,
    Logits,
    Losses,
    Method,
    Target,
    TextFeatures,
    TrainingImages,
    Trunk,
)
from dear.methods.linear_probe import METHOD, LinearProbeSettings
from dear.methods.optional import UsesAllImages
from dear.methods.solver import RegressionCoordinates, find_minimum

ENOUGH = 1e-7
"""Largest derivative of the mean loss, by what the solver varies, at which the solution is accepted: scores
are then within 1e-4 of the exact ones."""


class LinearProbe(Method, UsesAllImages):
    """Multinomial logistic regression with an L2 penalty, solved by L-BFGS before training; no steps follow.
    With unit features f, their classes y, and r the mean length of the features before they were normalized:

        min over W, b of  |W|^2 / 2 + c * sum over images of CE(W (r f) + b, y)

    Text features play no part. The test view of each image is taken once, as its authors do.

    Source: arXiv 2103.00020; github.com/openai/CLIP at d05afc4, README.md ("Linear-probe
    evaluation": scikit-learn's LogisticRegression, whose objective this is).

    Differs from the code: all features have the mean length of the training images' features, which
    ``weight`` includes [ours]; in the code they keep their own lengths. c is not swept.
    """

    declaration = METHOD
    settings: LinearProbeSettings
    weight: nn.Parameter
    bias: nn.Parameter
    length: float = 1.0  # r

    @torch.no_grad()
    def set_classes(self, classnames: Sequence[str], templates: Sequence[str]) -> None:
        """Set the classes; each gets its weights. Raises SettingsError for other classes afterwards."""
        first = not self.classnames
        super().set_classes(classnames, templates)
        if first:
            like = self.clip.image.projection
            self.weight = nn.Parameter(like.new_zeros(len(classnames), self.clip.image.embed_dim))
            self.bias = nn.Parameter(like.new_zeros(len(classnames)))

    @torch.no_grad()
    def before_training(self, images: TrainingImages) -> None:
        """Solve the regression, in float64 and from zero."""
        features = self.clip.image.finish(images.view(None)[:, 0]).double()
        self.length = float(features.norm(dim=-1).mean())
        unit = normalize(features, dim=-1)
        penalty = 1 / (self.length**2 * self.settings.c * len(unit))
        coordinates = RegressionCoordinates(unit, penalty)

        @torch.enable_grad()
        def objective(solution: Tensor) -> tuple[Tensor, Tensor]:
            weight, bias = coordinates.read(solution.requires_grad_())
            loss = self._objective(unit, images.labels, weight, bias)
            return loss.detach(), torch.autograd.grad(loss, solution)[0]

        start, steps = coordinates.start(len(self.bias)), self.settings.iterations
        weight, bias = coordinates.read(find_minimum(objective, start, enough=ENOUGH, steps=steps))
        self.weight.copy_(weight)
        self.bias.copy_(bias)

    def _objective(
        self,
        unit: Float[Tensor, "item embed"],
        labels: Int[Tensor, "item"],
        weight: Float[Tensor, "class embed"],
        bias: Float[Tensor, "class"],
    ) -> Float[Tensor, ""]:
        """The objective, divided by c and the number of images."""
        penalty = (weight / self.length).square().sum() / (2 * self.settings.c * len(labels))
        return self.label_loss(unit @ weight.T + bias, labels) + penalty

    def logits(self, image: ImageFeatures, text: TextFeatures, *, decoupled: bool = False) -> Logits:
        """Scores of the regression."""
        del text, decoupled
        return image[0] @ self.weight.T + self.bias

    def loss(self, trunk: Trunk, labels: Labels, frozen: Target = None) -> Losses:
        """The objective, as if the batch were all training images."""
        del frozen
        return {"loss": self._objective(self.image_features(trunk)[0], labels, self.weight, self.bias)}
