"""Images without labels for DeAR+: they take part in the means and the covariances of the classes, by
expectation-maximization, if that makes labeled images likelier that were left out. All of it is [ours].
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import cross_entropy, one_hot

from dear.methods.covariances import NEGLIGIBLE, whiten
from dear.methods.dear_plus import DearPlusSettings
from dear.methods.dear_plus.correction import corrected
from dear.methods.dear_plus.fitting import Examples, Fit, by_attribute, fit_on, with_strengths
from dear.methods.dear_plus.gaussian import BayesFactors, Gaussians, LabeledGaussians
from dear.methods.dear_plus.strengths import EVERY, fit_strengths
from dear.stats import mean_difference_error

WEIGHTS = (0.1, 1.0)
"""What an image without a label counts for beside one with a label: what is tried."""
ALPHA_OF_SHARING = 2.0
"""alpha over beta, times the root of the degrees of freedom of all evidence, by which images are shared."""
ROUNDS = 6
"""Rounds of expectation and maximization."""
SURE = 2.0
"""Standard errors by which the loss of left-out images must fall."""

Others = tuple[Float[Tensor, "other embed"], Float[Tensor, "other attribute embed"]]
"""f_0 and z_a / |e| of images without labels."""


@dataclass(frozen=True)
class AttributeViews:
    """What a mixture is fitted to, of one attribute.

    Attributes:
        labeled: f_a of labeled images, all views.
        others: f_a of images without labels.
        variance, strength: The variance that the covariance is shrunk to, and as of how many images.
    """

    labeled: Float[Tensor, "item view embed"]
    others: Float[Tensor, "other embed"]
    variance: float
    strength: float

    def gaussians(self, labels: Int[Tensor, "item"], shares: Float[Tensor, "other class"]) -> Gaussians:
        """The likeliest ones, given how far each image without a label counts for each class.

        The covariance has an inverse Wishart prior: C = (S + s v I) / (N + s), with S the scatter of N
        images, v the variance and s the strength. So it is shrunk less the more images there are. Nothing is
        evidence where the labeled images of a class do not differ.
        """
        views, others = self.labeled.shape[1], self.others
        counts = one_hot(labels, shares.shape[1]).to(shares)
        from_others = shares.T @ others
        of_classes = counts.sum(dim=0) + shares.sum(dim=0)
        means = (counts.T @ self.labeled.mean(dim=1) + from_others) / of_classes[:, None]
        residuals, cross = (self.labeled - means[labels, None]).flatten(0, 1), means.T @ from_others
        scatter = residuals.T @ residuals / views - cross - cross.T
        scatter = scatter + (others * shares.sum(dim=1)[:, None]).T @ others
        scatter = scatter + (means * shares.sum(dim=0)[:, None]).T @ means
        unit, total = torch.eye(len(scatter)).to(scatter), len(labels) + shares.sum() + self.strength
        if not self.variance * len(scatter) > NEGLIGIBLE:
            return Gaussians(means, of_classes, torch.zeros_like(scatter), scatter.new_zeros(()))
        whitening = whiten((scatter + self.strength * self.variance * unit) / total)
        freedom = len(scatter) - self.strength * self.variance / total * whitening.square().sum()
        return Gaussians(means, of_classes, whitening, freedom)


def share_out(
    readouts: Sequence[AttributeViews],
    labels: Int[Tensor, "item"],
    prior: Float[Tensor, "other class"],
    weight: float,
    rounds: int = ROUNDS,
) -> list[Gaussians]:
    """Of each attribute the Gaussians of labeled images and of others with a weight, from those of labeled
    images alone: in each round an image is shared out to the classes by its probabilities, from the scores by
    names that are its ``prior``, and evidence.

    But for the surplus, each round raises the likelihood of features and labels with evidence to the power
    alpha.
    """
    mixture = [part.gaussians(labels, torch.zeros_like(prior)) for part in readouts]
    freedom = float(torch.stack([part.freedom for part in mixture]).sum())
    alpha = ALPHA_OF_SHARING / freedom**0.5 if freedom > 0 else 0.0
    everything = torch.ones_like(mixture[0].counts[None]).bool()
    for _ in range(rounds if weight else 0):
        scores = prior
        for part, gaussians in zip(readouts, mixture, strict=True):
            factors = gaussians.factors(part.others, everything, 1.0).among(0)
            scores = scores + alpha * (factors + gaussians.surplus)
        shares = weight * scores.softmax(dim=1)
        mixture = [part.gaussians(labels, shares) for part in readouts]
    return mixture


@dataclass(frozen=True)
class Gain:
    """What images without labels are worth.

    Attributes:
        weight: What one counts for beside a labeled image; 0 if they are not used.
        before, after: The mean negative log-probability of labeled images' classes, each image left out,
            of strengths and weight too: without the others, and with them at the best weight.
        accuracy_before, accuracy_after: The same for the share of correct classes.
    """

    weight: float
    before: float
    after: float
    accuracy_before: float
    accuracy_after: float


def fit_with_others(
    plain: Fit, examples: Examples, others: Others, settings: DearPlusSettings
) -> tuple[Fit, Gain]:
    """Fit images without labels beside labeled ones, from what was fitted to these alone. That comes back if
    the others do not help: if the loss of left-out labeled images falls by less than `SURE` standard errors.
    Each class needs two labeled images.

    The parts of the labeled images are left out in turn, of M, covariances and their shrinkage, means and
    the shares of the others: all begins anew from the images that remain. To these scores the strengths are
    fitted, those of each weight and, to compare, those without the others. What the others are worth is told
    by scores in which the left-out images have no part (`nested_scores`), and the error counts groups.
    """
    labels = examples.labels
    varying = [attribute for attribute, of in enumerate(plain.evidence) if of.freedom > 0]
    fits = fit_weights(plain, examples, others, varying, settings) if varying else [plain, plain]
    losses = [cross_entropy(of.left_out[EVERY], labels) for of in fits]
    best = min(range(1, len(fits)), key=lambda number: float(losses[number]))
    before, after = nested_scores(fits, examples)
    of_images = [cross_entropy(scores, labels, reduction="none") for scores in (before, after)]
    without, with_others = (of.tolist() for of in of_images)
    error = mean_difference_error(without, with_others, examples.leader.tolist())
    helps = float((of_images[0] - of_images[1]).mean()) > SURE * error
    accuracies = ((scores.argmax(dim=1) == labels).double().mean().item() for scores in (before, after))
    weight = (0.0, *WEIGHTS)[best] * helps
    gain = Gain(weight, *(float(of.mean()) for of in of_images), *accuracies)
    return fits[best] if helps else plain, gain


def nested_scores(
    fits: Sequence[Fit], examples: Examples
) -> tuple[Float[Tensor, "item class"], Float[Tensor, "item class"]]:
    """The scores of left-out images by the first of some fits, and by the best other one. To score the images
    of a fold, the strengths of each fit are those of the other folds, and so is which one is the best.
    """
    before, after = (torch.empty_like(fits[0].left_out[EVERY]) for _ in range(2))
    for fold in examples.fold.unique():
        inside = examples.fold == fold
        labels, scores, losses = examples.labels[~inside], list[Tensor](), list[float]()
        for fit in fits:
            freedom = torch.stack([of.freedom for of in fit.evidence])
            strengths = fit_strengths(fit.terms.of_items(~inside), freedom)
            values = torch.cat([values for _, values in fit.terms.batches(EVERY)], dim=1)
            scores.append(torch.tensordot(strengths[0], values, dims=1))
            losses.append(float(cross_entropy(scores[-1][~inside], labels)))
        best = min(range(1, len(fits)), key=losses.__getitem__)
        before[inside], after[inside] = scores[0][inside], scores[best][inside]
    return before, after


def fit_weights(
    plain: Fit, examples: Examples, others: Others, varying: Sequence[int], settings: DearPlusSettings
) -> list[Fit]:
    """A fit without the others, and one for each of `WEIGHTS`, with new evidence of the attributes that are
    ``varying`` within classes.
    """
    features = by_attribute(examples.readouts, plain.remainder)[varying]
    of_others = by_attribute(others[1], plain.remainder)[varying]

    def fit_mixtures(
        rows: Bool[Tensor, "item"], correction: Float[Tensor, "embed embed"]
    ) -> list[list[Gaussians]]:
        """The Gaussians of some labeled images and the others, with each weight. They are shrunk as much as
        those of the labeled images alone where there are no others.
        """
        labels, readouts = examples.labels[rows], list[AttributeViews]()
        folds = None if examples.groups is None else examples.fold[rows]
        for part, points in zip(features, of_others, strict=True):
            fitted = LabeledGaussians(
                part[rows], labels, len(examples.text), settings.spread, settings.shrinkage, folds=folds
            )
            readouts.append(AttributeViews(part[rows], points, fitted.variance, fitted.strength))
        prior = corrected(others[0], correction) @ examples.text.T
        return [share_out(readouts, labels, prior, weight) for weight in (0.0, *WEIGHTS)]

    class_scores = torch.zeros_like(plain.terms.class_scores[EVERY])
    mixtures = fit_mixtures(torch.ones_like(examples.labels).bool(), plain.correction)
    squares = features.new_zeros(len(mixtures), len(varying), *class_scores.shape)
    backgrounds = features.new_zeros(*squares.shape[:3], len(examples.sets))
    for rows in (examples.fold == number for number in examples.fold.unique()):
        correction = fit_on(examples, ~rows, settings.penalty)
        class_scores[rows] = corrected(examples.frozen[rows, 0], correction) @ examples.text.T
        for number, mixture in enumerate(fit_mixtures(~rows, correction)):
            for i, gaussians in enumerate(mixture):
                factors = gaussians.factors(features[i, rows, 0], examples.sets, settings.spread)
                lacking = gaussians.surplus - mixtures[number][i].surplus
                squares[number, i, rows] = factors.squares - 2 * lacking
                backgrounds[number, i, rows] = factors.backgrounds
    fits = []
    for number, mixture in enumerate(mixtures):
        evidence, left_out = [*plain.evidence], [*plain.terms.factors]
        for i, attribute in enumerate(varying):
            evidence[attribute] = mixture[i].evidence()
            left_out[attribute] = BayesFactors(squares[number, i], backgrounds[number, i])
        terms = replace(
            plain.terms,
            class_scores=[*plain.terms.class_scores[:EVERY], class_scores],
            factors=left_out,
            lacking=[torch.zeros_like(of) for of in plain.terms.lacking],
        )
        fits.append(with_strengths(plain.correction, plain.remainder, evidence, terms))
    return fits
