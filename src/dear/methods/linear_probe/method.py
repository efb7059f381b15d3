"""The linear probe of CLIP's paper (Radford et al., ICML 2021): logistic regression on frozen features."""

from collections.abc import Sequence
from types import MappingProxyType

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import normalize

from dear.backbone.clip import Clip
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
from dear.methods.linear_probe import LinearProbeSettings

ENOUGH = 1e-9
"""Largest derivative of the mean loss at which the solution is accepted."""


class LinearProbe(Method):
    """Multinomial logistic regression with an L2 penalty, solved by L-BFGS before training; no steps follow.
    With unit features f, their classes y, and r the mean length of the features before they were normalized:

        min over W, b of  |W|^2 / 2 + c * sum over images of CE(W (r f) + b, y)

    Text features play no part. The test view of each image is taken once, as its authors do.

    Source: arXiv 2103.00020; github.com/openai/CLIP at d05afc4, README.md ("Linear-probe
    evaluation": scikit-learn's LogisticRegression, whose objective this is).

    Differs from the code: all features have the mean length of the training images' features, which
    ``weight`` includes [ours]; in the code they keep their own lengths. c is not swept.
    """

    name = "linear-probe"
    cheap = MappingProxyType({"iterations": 30})  # classifies as well, twenty times as fast
    settings: LinearProbeSettings
    open_vocabulary = False
    cosine_scores = False
    takes_steps = False
    weight: nn.Parameter
    bias: nn.Parameter

    def __init__(
        self, clip: Clip, generator: torch.Generator, settings: LinearProbeSettings | None = None
    ) -> None:
        super().__init__(clip, settings or LinearProbeSettings())
        del generator  # nothing is drawn
        self.length = 1.0

    @torch.no_grad()
    def set_classes(self, classnames: Sequence[str], templates: Sequence[str]) -> None:
        """Set the classes; each gets its weights. Raises SettingsError for other classes afterwards."""
        first = not self.classnames
        super().set_classes(classnames, templates)
        if first:
            like = self.clip.image.projection
            self.weight = nn.Parameter(like.new_zeros(len(classnames), self.clip.image.embed_dim))
            self.bias = nn.Parameter(like.new_zeros(len(classnames)))

    @torch.enable_grad()
    def before_training(self, images: TrainingImages) -> None:
        """Solve the regression, in float64 and from zero."""
        with torch.no_grad():
            features = self.clip.image.finish(images.view(None)[:, 0]).double()
            self.length = float(features.norm(dim=-1).mean())
        weight = torch.zeros_like(self.weight, dtype=torch.float64, requires_grad=True)
        bias = torch.zeros_like(self.bias, dtype=torch.float64, requires_grad=True)
        unit = normalize(features, dim=-1)
        solver = torch.optim.LBFGS(
            [weight, bias],
            max_iter=self.settings.iterations,
            max_eval=2 * self.settings.iterations,
            tolerance_grad=ENOUGH,
            tolerance_change=0.0,
            line_search_fn="strong_wolfe",
        )

        def closure() -> Tensor:
            solver.zero_grad()
            # The solver varies W, which is better conditioned than r W.
            loss = self._objective(unit, images.labels, self.length * weight, bias)
            loss.backward()
            return loss

        solver.step(closure)
        with torch.no_grad():
            self.weight.copy_(self.length * weight)
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
