"""Images without labels for DeAR+: they take part in the means and the covariances of the classes, by
expectation-maximisation, if that makes labelled images likelier that were left out. All of it is [ours].
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import cross_entropy, one_hot, pad

from dear.methods.dear_plus import DearPlusSettings
from dear.methods.dear_plus.fitting import (
    LEAST_BETA,
    Examples,
    Fit,
    Scores,
    absent_classes,
    bayes_factors,
    by_attribute,
    corrected,
    number_in_class,
)
from dear.methods.dear_plus.gaussian import NEGLIGIBLE, Distances, Gaussians
from dear.methods.dear_plus.solvers import fit_strengths

WEIGHTS = (0.1, 1.0)
"""What an image without a label counts for beside one with a label: what is tried."""
ALONE = 2.0
"""alpha over beta, times the root of the degrees of freedom of all evidence, by which images are shared."""
ROUNDS = 6
"""Rounds of expectation and maximisation."""
MOST_SHRUNK = 0.99
"""The prior of a covariance is worth at most 99 times as many images as there are."""
FOLDS = 8
"""Parts of the labelled images that are left out in turn, those of a class in different ones."""


@dataclass(frozen=True)
class Readouts:
    """What a mixture is fitted to, of the attributes that have evidence.

    Attributes:
        labelled: f_a of labelled images, all views.
        others: f_a of images without labels.
        prior: Their scores by names, f_cls t / tau.
        variance, strength: The variance that each covariance is shrunk to, and as of how many images.
    """

    labelled: Float[Tensor, "attribute item view embed"]
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
    def of(
        cls, readouts: Readouts, kept: Float[Tensor, "item"], shares: Float[Tensor, "other class"]
    ) -> Self:
        """The likeliest one, given how far each labelled image counts, and each other one for each class.

        Each covariance has an inverse Wishart prior: C = (S + s v I) / (N + s), with S the scatter of N
        images, v the variance and s the strength. So it is shrunk less the more images there are.
        """
        views, others = readouts.labelled, readouts.others
        counts = one_hot(readouts.labels, shares.shape[1]).to(views) * kept[:, None]
        of_class, images = counts.sum(dim=0) + shares.sum(dim=0), kept.sum() + shares.sum()
        from_others = torch.einsum("uk,aud->akd", shares, others)
        sums = torch.einsum("ik,aivd->akd", counts, views) / views.shape[2] + from_others
        means = sums / of_class[:, None]
        residuals = ((views - means[:, readouts.labels, None]) * kept.sqrt()[:, None, None]).flatten(1, 2)
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
        self, attribute: int, points: Float[Tensor, "item embed"], centres: Float[Tensor, "centre class"]
    ) -> Distances:
        """The squared Mahalanobis distances of points to the classes and to weighted means of these."""
        whitening = self.whitening[attribute]
        whitened, means = points @ whitening, self.means[attribute] @ whitening
        to_classes, to_centres = (torch.cdist(whitened, to).square() for to in (means, centres @ means))
        determinant = -whitening.diagonal().log().sum()
        of_all = (part.expand(len(points)) for part in (self.freedom[attribute], determinant))
        return Distances(to_classes, to_centres, *of_all)

    def surplus(self, attribute: int) -> Float[Tensor, "class"]:
        """By how much the log density of a class is too low on average, because of its mean of few images."""
        return self.freedom[attribute] / self.counts / 2

    def evidence(
        self, points: Float[Tensor, "attribute item embed"], spread: float
    ) -> Float[Tensor, "item class attribute"]:
        """E of each class (`DearPlus`)."""
        even = self.means.new_full((1, self.means.shape[1]), 1 / self.means.shape[1])
        parts = [bayes_factors(self.distances(at, of, even), 0, spread) for at, of in enumerate(points)]
        return torch.stack(parts, dim=2)


def share_out(
    readouts: Readouts,
    kept: Float[Tensor, "item"],
    weight: float,
    start: Mixture | None = None,
    rounds: int = ROUNDS,
) -> Mixture:
    """The mixture of labelled images and of others with a weight, from ``start`` or that of labelled images
    alone: in each round an image is shared out to the classes by its probabilities, from names and evidence.

    But for the surplus, each round raises the likelihood of features and labels with evidence to the power
    alpha.
    """
    of_labelled = Mixture.of(readouts, kept, torch.zeros_like(readouts.prior))
    alpha, mixture = ALONE / of_labelled.freedom.sum().sqrt(), start or of_labelled
    for _ in range(rounds if weight else 0):
        evidence = mixture.evidence(readouts.others, 1.0)
        evidence = evidence + torch.stack([mixture.surplus(at) for at in range(evidence.shape[2])], dim=1)
        scores = readouts.prior + alpha * evidence.sum(dim=2)
        mixture = Mixture.of(readouts, kept, weight * scores.softmax(dim=1))
    return mixture


@dataclass(frozen=True)
class Gain:
    """What images without labels are worth.

    Attributes:
        weight: What one counts for beside a labelled image; 0 if they are not used.
        before, after: The mean negative log-probability of labelled images' classes, each image left out:
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
    others: tuple[Float[Tensor, "other embed"], Float[Tensor, "other attribute embed"]],
    carried: Sequence[bool],
    settings: DearPlusSettings,
) -> tuple[Fit, Gain]:
    """Fit images without labels (f_0 and z_a / |e| of ``others``) beside labelled ones, from what was fitted
    to these alone. That comes back if the others do not help: if the loss of labelled images that are left
    out falls by less than its standard error, with others shared out anew each time. Each class needs two
    labelled images.

    Strengths are fitted to images that are left out of the mixture of all. Found anew from the labelled
    images that remain, classes meet a harder problem than new images do: a class of two has one image left
    among classes of two, and often takes another's. Strengths fitted to that trust evidence far too little.
    But images that had a say in where their class lies cannot tell whether the others help.
    """
    labels = examples.labels
    readouts, used = prepare(plain, examples, groups, others, carried, settings)
    whole, tried = torch.ones_like(labels, dtype=plain.centre.dtype), []
    minima = plain.centre.new_tensor([LEAST_BETA, *[0.0] * len(carried)])

    def fit_terms(weight: float, start: Mixture | None) -> tuple[Scores, Tensor, Scores]:
        """The terms of left-out images, the strengths fitted to them, and their scores, in each setting."""
        terms = [pad(part.unsqueeze(2), (0, len(carried))) for part in plain.class_scores]
        evidence = left_out_evidence(readouts, weight, settings.spread, start)
        for part, factors in zip(terms, evidence, strict=True):
            part[:, :, 1 + used] = factors
        strengths = torch.stack([fit_strengths(part, labels, minima) for part in (terms[2:], terms[:2])])
        scores = [part @ strengths[of_use] for part, of_use in zip(terms, (1, 1, 0), strict=True)]
        return terms, strengths, scores

    for weight in (0.0, *WEIGHTS) if len(used) else ():
        left_out = fit_terms(weight, None)[2]
        tried.append((_losses(left_out[2], labels), weight, left_out))
    if not tried:
        same = float(_losses(plain.left_out[2], labels).mean()), _accuracy(plain.left_out[2], labels)
        return plain, Gain(0.0, same[0], same[0], same[1], same[1])
    base, *tried = tried
    losses, weight, left_out = min(tried, key=lambda one: float(one[0].mean()))
    helps = is_gain(base[0] - losses)
    accuracies = (_accuracy(scores[2], labels) for scores in (base[2], left_out))
    gain = Gain(weight * helps, float(base[0].mean()), float(losses.mean()), *accuracies)
    if not helps:
        return plain, gain
    mixture = share_out(readouts, whole, weight)
    terms, strengths, _ = fit_terms(weight, mixture)
    centre, whitening = torch.zeros_like(plain.centre), torch.zeros_like(plain.whitening)
    means, freedom = torch.zeros_like(plain.means), torch.zeros_like(plain.freedom)
    centre[used], whitening[used] = mixture.means.mean(dim=1), mixture.whitening
    freedom[used] = mixture.freedom
    means[:, used] = ((mixture.means - centre[used][:, None]) @ mixture.whitening).movedim(1, 0)
    parts = strengths[0] * terms[2].std(dim=1).mean(dim=0)
    changed: dict[str, Any] = {"means": means, "centre": centre, "whitening": whitening, "freedom": freedom}
    return replace(plain, **changed, strengths=strengths, parts=parts / parts.sum(), left_out=left_out), gain


def prepare(
    plain: Fit,
    examples: Examples,
    groups: Float[Tensor, "item view attribute embed"],
    others: tuple[Float[Tensor, "other embed"], Float[Tensor, "other attribute embed"]],
    carried: Sequence[bool],
    settings: DearPlusSettings,
) -> tuple[Readouts, Int[Tensor, "used"]]:
    """What a mixture is fitted to, and the attributes that are in it: those that a head carries, and in which
    images of a class differ. Covariances are shrunk as much as those of labelled images alone
    (`Gaussians`) where there are no others.
    """
    labels, features = examples.labels, by_attribute(groups, plain.rest)
    used, variance, strength = [], [], []
    for at in torch.tensor(carried).nonzero().flatten().tolist():
        fitted = Gaussians(features[at], labels, examples.classes, settings.shrinkage)
        within = float((features[at] - fitted.means[labels][:, None]).square().mean())
        if within * features.shape[-1] > NEGLIGIBLE:
            used.append(at)
            variance.append(within)
            strength.append(len(labels) / (1 / min(fitted.shrinkage, MOST_SHRUNK) - 1))
    prior = corrected(others[0], plain.correction) @ examples.text.T
    of_others = by_attribute(others[1], plain.rest)[used]
    numbers = (features.new_tensor(values) for values in (variance, strength))
    return Readouts(features[used], labels, of_others, prior, *numbers), torch.tensor(used, dtype=torch.long)


def left_out_evidence(
    readouts: Readouts, weight: float, spread: float, start: Mixture | None = None
) -> list[Float[Tensor, "item class used"]]:
    """E of the first view of each labelled image, from a mixture without its fold, in each setting (see
    `fitting.left_out_evidence`). As classes with an image less lose by it, what the class has with all images
    is made up for. Expectation and maximisation begin anew, or go on from ``start``.
    """
    labels, classes = readouts.labels, readouts.prior.shape[1]
    known = ~absent_classes(classes, labels)
    centres = known / known.sum(dim=1, keepdim=True).clamp(min=1).to(readouts.prior)
    fold = (number_in_class(labels) + labels) % FOLDS
    whole = start or share_out(readouts, readouts.prior.new_ones(len(labels)), weight)
    settings = [readouts.prior.new_zeros(len(labels), classes, len(readouts.labelled)) for _ in known]
    for number in fold.unique().tolist():
        rows = fold == number
        mixture = share_out(readouts, (~rows).to(readouts.prior), weight, start)
        for at, features in enumerate(readouts.labelled):
            distances = mixture.distances(at, features[rows, 0], centres)
            for setting, (factors, is_known) in enumerate(zip(settings, known, strict=True)):
                lacking = mixture.surplus(at) - whole.surplus(at)
                factors[rows, :, at] = (bayes_factors(distances, setting, spread) + lacking) * is_known
    return settings


def is_gain(gains: Float[Tensor, "item"]) -> bool:
    """True for a mean above its standard error."""
    return bool(gains.mean() > gains.std() / len(gains) ** 0.5)


def _losses(scores: Float[Tensor, "item class"], labels: Int[Tensor, "item"]) -> Float[Tensor, "item"]:
    return cross_entropy(scores, labels, reduction="none")


def _accuracy(scores: Float[Tensor, "item class"], labels: Int[Tensor, "item"]) -> float:
    return float((scores.argmax(dim=1) == labels).double().mean())
