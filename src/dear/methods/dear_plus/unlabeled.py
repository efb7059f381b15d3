"""Images without labels for DeAR+: they take part in the means and the covariances of the classes, by
expectation-maximization, if that makes labeled images likelier that were left out. All of it is [ours].
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import cross_entropy, one_hot

from dear.methods.dear_plus import DearPlusSettings
from dear.methods.dear_plus.fitting import (
    Evidence,
    Examples,
    Fit,
    LeftOutEvidence,
    bayes_factors,
    build_no_evidence,
    by_attribute,
    compute_background,
    corrected,
    fit_on,
    weigh,
)
from dear.methods.dear_plus.gaussian import NEGLIGIBLE, Distances, Gaussians, average_known

WEIGHTS = (0.1, 1.0)
"""What an image without a label counts for beside one with a label: what is tried."""
ALONE = 2.0
"""alpha over beta, times the root of the degrees of freedom of all evidence, by which images are shared."""
ROUNDS = 6
"""Rounds of expectation and maximization."""
MOST_SHRUNK = 0.99
"""The prior of a covariance is worth at most 99 times as many images as there are."""
FOLDS = 8
"""Parts of the labeled images that are left out in turn, those of a class in different ones."""
SURE = 2.0
"""Standard errors by which the loss of left-out images must fall."""

Others = tuple[Float[Tensor, "other embed"], Float[Tensor, "other attribute embed"]]
"""f_0 and z_a / |e| of images without labels."""


@dataclass(frozen=True)
class Readouts:
    """What a mixture is fitted to, of the attributes that have evidence.

    Attributes:
        labeled: f_a of labeled images, all views.
        others: f_a of images without labels.
        prior: Their scores by names, f_cls t / tau.
        variance, strength: The variance that each covariance is shrunk to, and as of how many images.
    """

    labeled: Float[Tensor, "attribute item view embed"]
    labels: Int[Tensor, "item"]
    others: Float[Tensor, "attribute other embed"]
    prior: Float[Tensor, "other class"]
    variance: Float[Tensor, "attribute"]
    strength: Float[Tensor, "attribute"]


@dataclass(frozen=True)
class Mixture:
    """Gaussians of the classes with a shared covariance, for each attribute.

    Attributes:
        counts: How many images each class has, others by their shares.
        means: Of each class.
        whitening: W with C^-1 = W W'.
        freedom: The degrees of freedom of C, tr(C^-1 S / N) with S what it was before it was shrunk.
    """

    counts: Float[Tensor, "class"]
    means: Float[Tensor, "attribute class embed"]
    whitening: Float[Tensor, "attribute embed embed"]
    freedom: Float[Tensor, "attribute"]

    @classmethod
    def of(cls, readouts: Readouts, shares: Float[Tensor, "other class"]) -> Self:
        """The likeliest one, given how far each image without a label counts for each class.

        Each covariance has an inverse Wishart prior: C = (S + s v I) / (N + s), with S the scatter of N
        images, v the variance and s the strength. So it is shrunk less the more images there are.
        """
        views, others = readouts.labeled, readouts.others
        counts = one_hot(readouts.labels, shares.shape[1]).to(views)
        of_class, images = counts.sum(dim=0) + shares.sum(dim=0), len(counts) + shares.sum()
        from_others = torch.einsum("uk,aud->akd", shares, others)
        sums = torch.einsum("ik,aivd->akd", counts, views) / views.shape[2] + from_others
        means = sums / of_class[:, None]
        residuals = (views - means[:, readouts.labels, None]).flatten(1, 2)
        cross = means.mT @ from_others
        scatter = residuals.mT @ residuals / views.shape[2] - cross - cross.mT
        scatter = scatter + (others * shares.sum(dim=1)[:, None]).mT @ others
        scatter = scatter + (means * shares.sum(dim=0)[:, None]).mT @ means
        shrunk_to, total = readouts.strength * readouts.variance, images + readouts.strength
        unit = torch.eye(views.shape[3]).to(views)
        factor = torch.linalg.cholesky((scatter + shrunk_to[:, None, None] * unit) / total[:, None, None])
        whitening = torch.linalg.solve_triangular(factor, unit.expand_as(factor), upper=False).mT
        freedom = views.shape[3] - shrunk_to / total * whitening.square().sum(dim=(1, 2))
        return cls(of_class, means, whitening, freedom)

    def distances(
        self, attribute: int, points: Float[Tensor, "item embed"], known: Bool[Tensor, "setting class"]
    ) -> Distances:
        """Of points to the classes, and to the mean of those known in each setting."""
        whitening = self.whitening[attribute]
        whitened, means = points @ whitening, self.means[attribute] @ whitening
        to_classes, to_centers = (
            torch.cdist(whitened, to).square() for to in (means, average_known(means, known))
        )
        return Distances(to_classes, to_centers, self.freedom[attribute].expand(len(points)))

    def build_evidence(self, attribute: int, left_out: LeftOutEvidence) -> Evidence:
        """The evidence of one of the attributes."""
        center, whitening = self.means[attribute].mean(dim=0), self.whitening[attribute]
        means = (self.means[attribute] - center) @ whitening
        nothing = left_out.squares.new_zeros(len(left_out.squares))
        return Evidence(means, center, whitening, self.freedom[attribute], left_out, nothing)

    def surplus(self, attribute: int) -> Float[Tensor, "class"]:
        """By how much the log density of a class is too low on average, because of its mean of few images."""
        return self.freedom[attribute] / self.counts / 2


def share_out(readouts: Readouts, weight: float, rounds: int = ROUNDS) -> Mixture:
    """The mixture of labeled images and of others with a weight, from that of labeled images alone: in each
    round an image is shared out to the classes by its probabilities, from names and evidence.

    But for the surplus, each round raises the likelihood of features and labels with evidence to the power
    alpha.
    """
    mixture = Mixture.of(readouts, torch.zeros_like(readouts.prior))
    alpha, everything = ALONE / mixture.freedom.sum().sqrt(), torch.ones_like(mixture.counts[None]).bool()
    for _ in range(rounds if weight else 0):
        scores = readouts.prior
        for at, points in enumerate(readouts.others):
            factors = bayes_factors(mixture.distances(at, points, everything), 0, 1.0)
            scores = scores + alpha * (factors + mixture.surplus(at))
        mixture = Mixture.of(readouts, weight * scores.softmax(dim=1))
    return mixture


@dataclass(frozen=True)
class Gain:
    """What images without labels are worth.

    Attributes:
        weight: What one counts for beside a labeled image; 0 if they are not used.
        before, after: The mean negative log-probability of labeled images' classes, each image left out:
            without the others, and with them at the best weight.
        accuracy_before, accuracy_after: The same for the share of correct classes.
    """

    weight: float
    before: float
    after: float
    accuracy_before: float
    accuracy_after: float


def fit_with_others(
    plain: Fit,
    examples: Examples,
    groups: Float[Tensor, "item view attribute embed"],
    others: Others,
    carried: Sequence[bool],
    settings: DearPlusSettings,
) -> tuple[Fit, Gain]:
    """Fit images without labels beside labeled ones, from what was fitted to these alone. That comes back if
    the others do not help: if the loss of left-out labeled images falls by less than `SURE` standard errors.
    Each class needs two labeled images.

    The parts of the labeled images are left out in turn, of M, covariances and their shrinkage, means and
    the shares of the others: all begins anew from the images that remain. To these scores the strengths are
    fitted, those of each weight and, to compare, those without the others.
    """
    labels = examples.labels
    features = by_attribute(groups, plain.rest)
    used = [at for at, flag in enumerate(carried) if flag and varies(features[at], labels)]
    before, *fits = fit_weights(plain, examples, features, others, used, settings) if used else [plain]
    losses = [cross_entropy(of.left_out[2], labels, reduction="none") for of in (before, *fits)]
    best = min(range(1, len(losses)), key=lambda at: float(losses[at].mean()), default=0)
    helps = is_gain(losses[0] - losses[best])
    after = [before, *fits][best]
    accuracies = (float((of.left_out[2].argmax(dim=1) == labels).double().mean()) for of in (before, after))
    weight = (0.0, *WEIGHTS)[best] * helps
    return after if helps else plain, Gain(
        weight, *(float(losses[at].mean()) for at in (0, best)), *accuracies
    )


def varies(features: Float[Tensor, "item view embed"], labels: Int[Tensor, "item"]) -> bool:
    """True if images of a class differ."""
    fitted = Gaussians(features, labels, int(labels.max()) + 1, 1.0)
    return fitted.variance * features.shape[-1] > NEGLIGIBLE


def fit_weights(
    plain: Fit,
    examples: Examples,
    features: Float[Tensor, "attribute item view embed"],
    others: Others,
    used: Sequence[int],
    settings: DearPlusSettings,
) -> list[Fit]:
    """A fit without the others, and one for each of `WEIGHTS`."""
    labels, weights, known = examples.labels, (0.0, *WEIGHTS), ~examples.absent
    everything = torch.ones_like(labels, dtype=torch.bool)
    readouts = prepare(examples, features, others, plain, used, everything, settings.shrinkage)
    mixtures = [share_out(readouts, weight) for weight in weights]
    class_scores = torch.zeros_like(plain.class_scores[2])
    squares = features.new_zeros(len(weights), len(used), *class_scores.shape)
    background = features.new_zeros(len(weights), len(used), len(labels), len(known))
    fold = (examples.rank + examples.order[labels]) % FOLDS
    for number in fold.unique().tolist():
        rows = fold == number
        correction = fit_on(examples, ~rows, settings.penalty)
        class_scores[rows] = corrected(examples.frozen[rows, 0], correction) @ examples.text.T
        part = replace(plain, correction=correction)
        readouts = prepare(examples, features, others, part, used, ~rows, settings.shrinkage)
        for number, (weight, whole) in enumerate(zip(weights, mixtures, strict=True)):
            mixture = share_out(readouts, weight)
            for place, at in enumerate(used):
                distances = mixture.distances(place, features[at, rows, 0], known)
                lacking = mixture.surplus(place) - whole.surplus(place)
                squares[number, place, rows] = distances.to_classes - 2 * lacking
                background[number, place, rows] = compute_background(distances, settings.spread)
    fits = []
    for number, mixture in enumerate(mixtures):
        evidence = [build_no_evidence(examples, part, plain.with_evidence) for part in features]
        for place, at in enumerate(used):
            left_out = LeftOutEvidence(background[number, place], squares[number, place], known)
            evidence[at] = mixture.build_evidence(place, left_out)
        scores = [*plain.class_scores[:2], class_scores]
        fits.append(weigh(examples, plain.correction, plain.rest, plain.with_evidence, evidence, scores))
    return fits


def prepare(
    examples: Examples,
    features: Float[Tensor, "attribute item view embed"],
    others: Others,
    plain: Fit,
    used: Sequence[int],
    kept: Bool[Tensor, "item"],
    shrinkage: float | None,
) -> Readouts:
    """What a mixture is fitted to, without the images that are not ``kept``. Covariances are shrunk as much
    as those of labeled images alone (`Gaussians`) where there are no others.
    """
    labels, classes, variance, strength = examples.labels[kept], len(examples.text), [], []
    for at in used:
        fitted = Gaussians(features[at, kept], labels, classes, shrinkage)
        variance.append(fitted.variance)
        strength.append(len(labels) / (1 / min(fitted.shrinkage, MOST_SHRUNK) - 1))
    prior = corrected(others[0], plain.correction) @ examples.text.T
    of_others = by_attribute(others[1], plain.rest)[used]
    numbers = (features.new_tensor(values) for values in (variance, strength))
    return Readouts(features[used][:, kept], labels, of_others, prior, *numbers)


def is_gain(gains: Float[Tensor, "item"]) -> bool:
    """True for a mean above `SURE` times its standard error."""
    return bool(gains.mean() > SURE * gains.std() / len(gains) ** 0.5)
