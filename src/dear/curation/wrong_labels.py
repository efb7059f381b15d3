"""Which labels of training images look wrong, by probabilities of classifiers that had not seen them.

A label is right with probability 1 - e, and each other class with e / (K - 1).
With p_k the probability of class k from its pixels, softmax(z_k / T) of left-out scores z, that of its label
y is

    P(y) = (1 - e) p_y + e / (K - 1) (1 - p_y)

e is that at which all labels are likeliest. T is the lowest at which they are as likely as at any, up to a
factor of exp(1): where all images are told apart equally clearly, a doubtful classifier explains a few wrong
labels just as well as a sure one. So nothing is to be set. A label looks wrong if another
class explains it better: if e / (K - 1) p_k > (1 - e) p_y for some k.
How many of these are wrong is what the likeliest T and e say on average. Where that is at most one half, or
the classifier agrees with few labels, those that look wrong are only the ones to look at first. [ours]

Between two classes that the classifier often confuses, a wrong label looks like one of its mistakes, so these
classes are named.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from dear.methods.stacking import SCORES_AT_ONCE

TEMPERATURES = tuple(torch.logspace(-1, 1, 41, dtype=torch.float64).tolist())
"""T is one of these."""
NEARLY = 1.0
"""By which the log-likelihood of all labels may be below the largest."""
STEPS = 100
"""Of expectation-maximization for e, from START."""
START = 0.05
LEAST = 1e-12
TRUSTED = 0.75
"""Share of labels that a classifier agrees with, below which its contradictions are not taken for wrong
labels: of those on other people's pictures, with and without planted ones, mostly less than half were.
"""
PRECISE = 0.5
"""Expected share of wrong labels among those that look wrong, above which these are taken for wrong."""
CONFUSED, FEWEST_CONFUSED = 0.2, 3
"""Share of the images of two classes that are taken for the other one, and their number, from which wrong
labels may hide among them.
"""


@dataclass(frozen=True)
class LabelScores:
    """What left-out images say of their labels.

    Attributes:
        suggested: The most probable other class.
        probability: That of the two this class is the right one, and not the label.
        wrong_share: e.
        precision: The expected share of wrong ones among the labels that look wrong.
    """

    suggested: Int[Tensor, "item"]
    probability: Float[Tensor, "item"]
    wrong_share: float
    precision: float = 1.0

    @property
    def is_precise(self) -> bool:
        """True if most of the labels that look wrong are expected to be."""
        return self.precision > PRECISE

    @property
    def looks_wrong(self) -> Bool[Tensor, "item"]:
        """True where the other class is the more probable one."""
        return self.probability > 0.5


def score_labels(scores: Float[Tensor, "item class"], labels: Int[Tensor, "item"]) -> LabelScores:
    """The scores of images that nothing was fitted on, or logarithms of their probabilities, against their
    labels. With a single class no label can be wrong.
    """
    scores, column = scores.double(), labels.unsqueeze(1)
    classes = scores.shape[1]
    if classes < 2 or not len(labels):
        return LabelScores(labels, torch.zeros(len(labels), dtype=torch.float64), 0.0)
    fits = [
        (*fit_wrong_share(right, classes), temperature)
        for right, temperature in zip(_compute_probabilities(scores, labels), TEMPERATURES, strict=True)
    ]
    least = max(fits)[0] - NEARLY / len(labels)
    _, wrong, temperature = next(fit for fit in fits if fit[0] >= least)
    others = scores.scatter(1, column, -torch.inf)
    best = others.max(dim=1)
    gaps = scores.gather(1, column)[:, 0] - best.values

    def find_probability(wrong: float, temperature: float) -> Float[Tensor, "item"]:
        """That of the two the best other class is the right one."""
        prior = (
            torch.tensor((1 - wrong) * (classes - 1) / wrong).double().log() if wrong > LEAST else torch.inf
        )
        return torch.sigmoid(-(gaps / temperature + prior))

    probability = find_probability(wrong, temperature)
    _, likeliest_share, likeliest = max(fits)
    of_doubtful = find_probability(likeliest_share, likeliest)[probability > 0.5]
    precision = float(of_doubtful.mean()) if len(of_doubtful) else 1.0
    if float((gaps >= 0).double().mean()) < TRUSTED:
        precision = min(precision, PRECISE)
    return LabelScores(best.indices, probability, wrong, precision)


def _compute_probabilities(
    scores: Float[Tensor, "item class"], labels: Int[Tensor, "item"]
) -> Float[Tensor, "temperature item"]:
    """Those of the labels at each temperature, computed for a few images at a time."""
    rows = max(1, SCORES_AT_ONCE // scores.shape[1])
    parts = []
    for part, column in zip(scores.split(rows), labels[:, None].split(rows), strict=True):
        above = part - part.gather(1, column)
        parts.append(torch.stack([(-(above / each).logsumexp(dim=1)).exp() for each in TEMPERATURES]))
    return torch.cat(parts, dim=1)


def find_confused(
    scores: Float[Tensor, "item class"], labels: Int[Tensor, "item"]
) -> list[tuple[int, int, int, int]]:
    """Pairs of classes that are often taken for each other, those with the largest share first: the classes,
    how many left-out images of them are taken for the other one, and how many images they have.
    """
    classes = scores.shape[1]
    taken = torch.bincount(labels * classes + scores.argmax(dim=1), minlength=classes**2)
    taken, images = taken.view(classes, classes), torch.bincount(labels, minlength=classes)
    mutual, of_both = (taken + taken.T).triu(diagonal=1), images[:, None] + images
    shares = mutual.double() / of_both.clamp(min=1)
    often = ((mutual >= FEWEST_CONFUSED) & (shares >= CONFUSED)).nonzero()
    often = often[shares[*often.T].argsort(descending=True, stable=True)]
    return [
        (first, second, int(mutual[first, second]), int(of_both[first, second]))
        for first, second in often.tolist()
    ]


def fit_wrong_share(of_label: Float[Tensor, "item"], classes: int) -> tuple[float, float]:
    """The mean log-likelihood of labels with these probabilities, and the e at which it is largest. It is
    concave in e.
    """
    right, share = of_label.clamp(LEAST, 1 - LEAST), START
    other = (1 - right) / (classes - 1)
    for _ in range(STEPS):
        wrong = share * other
        share = float((wrong / (wrong + (1 - share) * right)).mean())
    return float(((1 - share) * right + share * other).log().mean()), share
