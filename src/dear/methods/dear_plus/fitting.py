"""All that DeAR+ computes from the readouts of its training images, in closed form or as a convex problem."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import normalize, one_hot, pad

from dear.methods.dear_plus import DearPlusSettings
from dear.methods.dear_plus.gaussian import Distances, Gaussians
from dear.methods.dear_plus.solvers import fit_correction, fit_strengths

RAISES = (1.0, 3.0, 10.0)
"""Factors on the penalty that are tried in order; after the last the class feature is not corrected."""
DOUBT = 2.0
"""Standard errors over classes by which accuracy on left-out classes may fall before it counts."""
LEAST_IMAGES = 2
"""Training images that a class needs for evidence: one of them is left out to see what it is worth."""
ALONE = 0.5
"""alpha over beta, times the root of the degrees of freedom of all evidence, where none can be left out."""
SURPLUS = 0.5
"""Share of a class's expected loss by an image left out that is made up for; all of it is too sure."""
LEAST_BETA = 0.01
"""beta never reaches 0, at which classes without images could not be told apart."""

Scores = list[Float[Tensor, "item class"]]
"""Scores of the training images as if they were new: without every other class, without the others, and with
all classes.
"""


@dataclass(frozen=True)
class Fit:
    """What DeAR+ is made of, in float64.

    Attributes:
        penalty: That of the correction, or None if there is none.
        correction: M.
        rest: m of each attribute.
        with_evidence: The classes with evidence; means are of these, in order.
        means, centre, whitening, freedom: w, mu, W and d of each attribute; zero for those without evidence.
        strengths: beta, then the alpha of each attribute: where all classes have evidence, and where some
            have none.
        parts: The share of each term in the scores of training images as if they were new: of the standard
            deviation over classes, by those strengths that they are scored with.
        left_out: The scores of training images as if they were new, in each setting.
        class_scores: Those of the class feature alone (`class_scores`).
    """

    penalty: float | None
    correction: Float[Tensor, "embed embed"]
    rest: Float[Tensor, "attribute embed"]
    with_evidence: Bool[Tensor, "class"]
    means: Float[Tensor, "known attribute embed"]
    centre: Float[Tensor, "attribute embed"]
    whitening: Float[Tensor, "attribute embed embed"]
    freedom: Float[Tensor, "attribute"]
    strengths: Float[Tensor, "use feature"]
    parts: Float[Tensor, "feature"]
    left_out: Scores
    class_scores: Scores


@dataclass(frozen=True)
class Examples:
    """Training images, all views of each, the test view first.

    Attributes:
        frozen: f_0.
        text: The text features of the classes, times 1 / tau.
    """

    frozen: Float[Tensor, "item view embed"]
    labels: Int[Tensor, "item"]
    text: Float[Tensor, "class embed"]

    @property
    def classes(self) -> int:
        return len(self.text)


def fit(
    examples: Examples,
    groups: Float[Tensor, "item view attribute embed"],
    carried: Sequence[bool],
    settings: DearPlusSettings,
) -> Fit:
    """Compute everything. ``groups`` are z_a / |e|; attributes that no head ``carried`` get no evidence."""
    labels, classes, attributes, embed = examples.labels, examples.classes, groups.shape[2], groups.shape[3]
    rest = (examples.frozen.unsqueeze(2) - groups).mean(dim=(0, 1))
    features = by_attribute(groups, rest)
    penalty, scores = choose_penalty(examples, settings.penalty)
    change = fit_on(examples, torch.ones_like(labels, dtype=torch.bool), penalty)
    images, spread = torch.bincount(labels, minlength=classes), settings.spread
    single = 2 * int((images >= LEAST_IMAGES).sum()) < classes  # few classes have an image to leave out
    with_evidence = images >= (1 if single else LEAST_IMAGES)
    if int(with_evidence.sum()) < 2:  # nothing to tell apart
        with_evidence = torch.zeros_like(with_evidence)
    known, used = int(with_evidence.sum()), with_evidence[labels]
    column = (with_evidence.long().cumsum(dim=0) - 1)[labels[used]]
    means, centre = rest.new_zeros(known, attributes, embed), rest.new_zeros(attributes, embed)
    whitening, freedom = rest.new_zeros(attributes, embed, embed), rest.new_zeros(attributes)
    terms = [pad(of_class.unsqueeze(2), (0, attributes)) for of_class in scores]
    for at in torch.tensor(carried).nonzero().flatten().tolist() if known else ():
        fitted = Gaussians(features[at][used], column, known, settings.shrinkage, spread if single else None)
        centre[at] = fitted.means.mean(dim=0)
        means[:, at] = (fitted.means - centre[at]) @ fitted.whitening
        whitening[at], freedom[at] = fitted.whitening, fitted.freedom
        if single:  # of no use for strengths, only for shares
            distances = fitted.distances(features[at][:, 0], means.new_full((1, known), 1 / known))
            terms[2][:, with_evidence, 1 + at] = bayes_factors(distances, 0, spread)
            continue
        evidence = left_out_evidence(fitted, features[at], labels, with_evidence, spread)
        for of_setting, factors in zip(terms, evidence, strict=True):
            of_setting[:, :, 1 + at] = factors
    strengths, use = rest.new_zeros(2, 1 + attributes), int(not with_evidence.all())
    minima = strengths[0].clone()
    minima[0], strengths[:, 0], parts = LEAST_BETA, 1, strengths[0].clone()
    if classes > 1:
        absent = 0 if single else min(1.0, int((images == 0).sum()) / (classes // 2))
        of_settings = [absent / 2, absent / 2, 1 - absent] if absent else [0.5, 0.5]
        strengths[:] = fit_strengths(terms[: len(of_settings)], labels, minima, of_settings)
        if known:
            of_known = terms[2][used][:, with_evidence]
            of_known[..., 1:] *= not single
            strengths[0] = fit_strengths([of_known], column, minima)
        if known and single:
            strengths[0, 1:] = ALONE * strengths[0, 0] * (freedom > 0) / freedom.sum().clamp(min=1).sqrt()
        parts = strengths[use] * terms[2].std(dim=1).mean(dim=0)
    left_out = [part @ strengths[of_use] for part, of_use in zip(terms, (1, 1, use), strict=True)]
    gaussians = means, centre, whitening, freedom
    shares = parts / parts.sum()
    return Fit(penalty, change, rest, with_evidence, *gaussians, strengths, shares, left_out, scores)


def by_attribute(
    groups: Float[Tensor, "*any attribute embed"], rest: Float[Tensor, "attribute embed"]
) -> Float[Tensor, "attribute *any embed"]:
    """f_a = u(z_a / |e| + m_a)."""
    return normalize(groups + rest, dim=-1).movedim(-2, 0)


def corrected(
    frozen: Float[Tensor, "*any embed"], change: Float[Tensor, "embed embed"]
) -> Float[Tensor, "*any embed"]:
    """u(f + M' f)."""
    return normalize(frozen + frozen @ change, dim=-1)


def fit_on(
    examples: Examples, fitted: Bool[Tensor, "item"], penalty: float | None
) -> Float[Tensor, "embed embed"]:
    """M from all views of some images, among their classes; zero without a penalty or with one class."""
    present, targets = examples.labels[fitted].unique(return_inverse=True)
    if penalty is None or len(present) < 2:
        return examples.frozen.new_zeros(examples.frozen.shape[2], examples.frozen.shape[2])
    features, views = examples.frozen[fitted].flatten(0, 1), examples.frozen.shape[1]
    return fit_correction(features, targets.repeat_interleave(views), examples.text[present], penalty)


def choose_penalty(examples: Examples, penalty: float) -> tuple[float | None, Scores]:
    """The penalty, raised if left-out classes ask for it, or None for no correction; and the scores of the
    class feature (`class_scores`).
    """
    without = class_scores(examples, None)
    before = left_out_accuracy(without, examples.labels)
    for factor in RAISES if len(examples.labels.unique()) > 1 else ():
        scores = class_scores(examples, factor * penalty)
        gains = left_out_accuracy(scores, examples.labels) - before
        if gains.mean() + DOUBT * gains.std() / len(gains) ** 0.5 >= 0:
            return factor * penalty, scores
    return None, without


def absent_classes(classes: int, like: Tensor) -> Bool[Tensor, "setting class"]:
    """Which classes count as ones without images in each setting: every other one, the others, none."""
    odd = torch.arange(classes, device=like.device) % 2 == 1
    return torch.stack([~odd, odd, torch.zeros_like(odd)])


def class_scores(examples: Examples, penalty: float | None) -> Scores:
    """f_cls t / tau of each image's test view, in each setting. M is from half of the images of the classes
    that are not left out: to score one of these, from the half that it is not in; to score one of a left-out
    class, from the half of its own parity.
    """
    labels, order, settings = examples.labels, number_in_class(examples.labels), []
    for absent in absent_classes(examples.classes, labels):
        left_out = absent[labels]
        scores = examples.text.new_zeros(len(left_out), examples.classes)
        for part in (0, 1):
            change = fit_on(examples, ~left_out & (order % 2 != part), penalty)
            scored = (order % 2 == part) ^ left_out  # of left-out classes, M has no image at all
            scores[scored] = corrected(examples.frozen[scored, 0], change) @ examples.text.T
        settings.append(scores)
    return settings


def left_out_accuracy(scores: Scores, labels: Int[Tensor, "item"]) -> Float[Tensor, "class"]:
    """The accuracy on the images of each class that has some, as a fraction, in the setting that it is left
    out of.
    """
    of_left_out = torch.where((labels % 2 == 0).unsqueeze(1), scores[0], scores[1])
    correct = (of_left_out.argmax(dim=1) == labels).double()
    sums = correct.new_zeros(of_left_out.shape[1]).index_add_(0, labels, correct)
    images = torch.bincount(labels, minlength=len(sums))
    return sums[images > 0] / images[images > 0]


def left_out_evidence(
    fitted: Gaussians,
    features: Float[Tensor, "item view embed"],
    labels: Int[Tensor, "item"],
    with_evidence: Bool[Tensor, "class"],
    spread: float,
) -> Scores:
    """E of each image's test view as if the image were new, in each setting: classes that are left out, and
    those without evidence, have 0. With all classes known, the class of a left-out image has n - 1 images, so
    its squared distance D grows by D / n^2; a share of the mean D over n^2 is taken off.
    """
    classes, used = with_evidence.nonzero().flatten(), with_evidence[labels]
    is_known = ~absent_classes(len(with_evidence), labels)[:, classes]
    weights = is_known / is_known.sum(dim=1, keepdim=True).clamp(min=1).to(features.dtype)
    by_row = [(used, fitted.left_out(weights)), (~used, fitted.distances(features[~used, 0], weights))]
    settings = []
    for number, known in enumerate(is_known):
        factors = features.new_zeros(len(labels), len(with_evidence))
        for rows, distances in by_row:
            part = factors.new_zeros(int(rows.sum()), len(with_evidence))
            part[:, classes] = bayes_factors(distances, number, spread) * known
            factors[rows] = part
        settings.append(factors)
    own = by_row[0][1].to_classes.gather(1, fitted.labels.unsqueeze(1)).mean()
    settings[-1][used, labels[used]] += SURPLUS / 2 * own / fitted.counts[fitted.labels] ** 2
    return settings


def bayes_factors(distances: Distances, centre: int, spread: float) -> Float[Tensor, "item class"]:
    """log N(f; mu_k, C) - log N(f; mu, (1 + rho) C), with mu one of the centres."""
    background = distances.to_centres[:, centre] / (1 + spread) + distances.freedom * math.log1p(spread)
    return (background.unsqueeze(1) - distances.to_classes) / 2


def number_in_class(labels: Int[Tensor, "item"]) -> Int[Tensor, "item"]:
    """How many items before it have the same label."""
    same = one_hot(labels)
    return (same.cumsum(dim=0) * same).sum(dim=1) - 1
