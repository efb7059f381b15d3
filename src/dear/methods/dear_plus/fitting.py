"""All that DeAR+ computes from the readouts of its training images, in closed form or as a convex problem.
`DearPlus` says what is computed, and why.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import normalize

from dear.methods.dear_plus import DearPlusSettings
from dear.methods.dear_plus.gaussian import Distances, Gaussians
from dear.methods.dear_plus.names import NameCost, measure_name_cost, score
from dear.methods.dear_plus.solvers import Terms, fit_correction, fit_strengths, in_batches

LEAST_IMAGES = 2
"""Training images that a class needs for evidence: one of them is left out to see what it is worth."""
ALONE = 0.5
"""alpha over beta, times the root of the degrees of freedom of all evidence, where most classes have one
image.
"""
SURPLUS = 0.5
"""Share of a class's expected loss by an image left out that is made up for where strengths are fitted; with
all of it they are too sure.
"""
LEAST_BETA = 0.01
"""beta never reaches 0, at which classes without images could not be told apart."""

Scores = Sequence[Float[Tensor, "item class"]]
"""Numbers of left-out training images, in three settings: one half of the classes counts as without images,
then the other half, then none.
"""


@dataclass(frozen=True)
class Examples:
    """Training images, all views of each, the test view first.

    Attributes:
        frozen: f_0.
        text: The text features of the classes, times 1 / tau.
        order: The place of each class in an order that is not that of the numbers, such as that of its name's
            hash: halves of classes are every other one.
    """

    frozen: Float[Tensor, "item view embed"]
    labels: Int[Tensor, "item"]
    text: Float[Tensor, "class embed"]
    order: Int[Tensor, "class"]

    @property
    def absent(self) -> Bool[Tensor, "setting class"]:
        """Which classes count as ones without images, in each setting."""
        half = self.order % 2 == 1
        return torch.stack([~half, half, torch.zeros_like(half)])

    @property
    def rank(self) -> Int[Tensor, "item"]:
        """The place of each image in its class by the first number of its features, whatever the order of
        images is.
        """
        by_content = self.frozen[:, 0, 0].argsort(stable=True)
        in_classes = by_content[self.labels[by_content].argsort(stable=True)]
        images = torch.bincount(self.labels, minlength=len(self.text))
        starts = (images.cumsum(dim=0) - images)[self.labels[in_classes]]
        rank = torch.empty_like(self.labels)
        rank[in_classes] = torch.arange(len(rank), device=rank.device) - starts
        return rank


@dataclass(frozen=True)
class LeftOutEvidence:
    """E of each image's test view as if the image were new, in each setting: (background - squares) / 2 of
    the known classes, and 0 of those that are left out or without evidence. So what is images x classes
    stands once, whatever the number of settings.
    """

    background: Float[Tensor, "item setting"]
    squares: Float[Tensor, "item class"]
    known: Bool[Tensor, "setting class"]

    def __getitem__(self, setting: int) -> Float[Tensor, "item class"]:
        return self.of_rows(setting, torch.arange(len(self.squares), device=self.squares.device))

    def of_rows(self, setting: int, rows: Int[Tensor, "row"]) -> Float[Tensor, "row class"]:
        """E of some images."""
        halves = self.known[setting].to(self.squares) / 2
        return (self.background[rows, setting, None] - self.squares[rows]) * halves


@dataclass(frozen=True)
class Evidence:
    """The Gaussians of one attribute, in float64; zero for an attribute that no head carries.

    Attributes:
        means: w of each class with evidence.
        center, whitening, freedom: mu, W and d.
        left_out: E of each image's test view as if the image were new, in each setting.
        lacking: What the E of an image's own class lacks on average for the image left out, all classes
            known. It counts where strengths are fitted, and is not in the scores of left-out images.
    """

    means: Float[Tensor, "known embed"]
    center: Float[Tensor, "embed"]
    whitening: Float[Tensor, "embed embed"]
    freedom: Float[Tensor, ""]
    left_out: LeftOutEvidence
    lacking: Float[Tensor, "item"]


@dataclass(frozen=True)
class Fit:
    """What DeAR+ is made of, in float64.

    Attributes:
        correction: M.
        rest: m of each attribute.
        with_evidence: The classes with evidence; means are of these, in order.
        evidence: Of each attribute.
        strengths: beta, then the alpha of each attribute: where all classes have evidence, and where half
            have none.
        name_cost: Of a class without images, beside classes with evidence.
        parts: Each term's share of the spread of left-out scores, all classes known: of the standard
            deviation over classes.
        left_out: The scores of left-out images, in each setting.
        class_scores: Those of the class feature alone, before they are weighted.
    """

    correction: Float[Tensor, "embed embed"]
    rest: Float[Tensor, "attribute embed"]
    with_evidence: Bool[Tensor, "class"]
    evidence: Sequence[Evidence]
    strengths: Float[Tensor, "use feature"]
    name_cost: NameCost
    parts: Float[Tensor, "feature"]
    left_out: Scores
    class_scores: Scores


def fit(
    examples: Examples,
    groups: Float[Tensor, "item view attribute embed"],
    carried: Sequence[bool],
    settings: DearPlusSettings,
) -> Fit:
    """Compute everything. ``groups`` are z_a / |e|; attributes that no head ``carried`` get no evidence."""
    images = torch.bincount(examples.labels, minlength=len(examples.text))
    rest = (examples.frozen.unsqueeze(2) - groups).mean(dim=(0, 1))
    few = has_single_images(images)
    with_evidence = images >= (1 if few else LEAST_IMAGES)
    if int(with_evidence.sum()) < 2:  # nothing to tell apart
        with_evidence = torch.zeros_like(with_evidence)
    evidence = [
        fit_evidence(examples, features, with_evidence, settings, few=few)
        if is_carried and with_evidence.any()
        else build_no_evidence(examples, features, with_evidence)
        for features, is_carried in zip(by_attribute(groups, rest), carried, strict=True)
    ]
    everything = torch.ones_like(examples.labels, dtype=torch.bool)
    correction = fit_on(examples, everything, settings.penalty)
    scores = compute_class_scores(examples, settings.penalty)
    return weigh(examples, correction, rest, with_evidence, evidence, scores)


def has_single_images(images: Int[Tensor, "class"]) -> bool:
    """True where most of the classes with images have a single one, which cannot be left out."""
    return 2 * int((images >= LEAST_IMAGES).sum()) < int((images > 0).sum())


def weigh(
    examples: Examples,
    correction: Float[Tensor, "embed embed"],
    rest: Float[Tensor, "attribute embed"],
    with_evidence: Bool[Tensor, "class"],
    evidence: Sequence[Evidence],
    class_scores: Scores,
) -> Fit:
    """Fit the strengths of both uses to left-out images, and score these."""
    labels, use = examples.labels, int(not with_evidence.all())
    images = torch.bincount(labels, minlength=len(with_evidence))
    terms = [partial(compute_terms, class_scores, evidence, setting) for setting in range(3)]
    lacking = torch.stack([of.lacking for of in evidence])

    def add_lacking(rows: Int[Tensor, "row"]) -> Float[Tensor, "term row class"]:
        values = terms[2](rows)
        values[1:, torch.arange(len(rows)), labels[rows]] += lacking[:, rows]
        return values

    freedom = torch.stack([of.freedom for of in evidence])
    strengths = fit_uses([*terms[:2], add_lacking], labels, with_evidence, freedom)
    known, is_single = with_evidence & ~examples.absent, has_single_images(images)
    cost = measure_name_cost(terms[:2], labels, known, strengths, is_single=is_single)
    left_out, spreads = [torch.empty_like(class_scores[2]) for _ in terms], strengths[use].clone()
    deviations = torch.zeros_like(spreads)
    for setting, (scores, part) in enumerate(zip(left_out, terms, strict=True)):
        for rows, values in in_batches(part, len(labels), labels.device):
            first, second = (torch.tensordot(used, values, dims=1) for used in strengths)
            scores[rows] = score(first, second, known[setting], cost.threshold)
            if setting == 2 and is_single:  # without its only image a class is one by name alone
                scores[rows] = second.where(images[labels[rows], None] == 1, scores[rows])
            if setting == 2 and len(with_evidence) > 1:
                deviations += values.std(dim=2).sum(dim=1)
    if len(with_evidence) > 1:
        spreads *= deviations / len(labels)
    return Fit(
        *(correction, rest, with_evidence, evidence, strengths, cost),
        *(spreads / spreads.sum(), left_out, class_scores),
    )


def compute_terms(
    class_scores: Scores, evidence: Sequence[Evidence], setting: int, rows: Int[Tensor, "row"]
) -> Float[Tensor, "term row class"]:
    """The terms of the scores of some left-out images, before they are weighted."""
    return torch.stack(
        [class_scores[setting][rows], *(of.left_out.of_rows(setting, rows) for of in evidence)]
    )


def fit_uses(
    terms: Sequence[Terms],
    labels: Int[Tensor, "item"],
    with_evidence: Bool[Tensor, "class"],
    freedom: Float[Tensor, "attribute"],
) -> Float[Tensor, "use term"]:
    """beta and the alphas where all classes have evidence, and where half have none (`DearPlus`)."""
    single = has_single_images(torch.bincount(labels, minlength=len(with_evidence)))
    strengths = freedom.new_zeros(2, 1 + len(freedom))
    strengths[:, 0] = 1
    if len(with_evidence) < 2:
        return strengths
    if single:  # evidence that would count needs an image that can be left out
        terms = [partial(without_evidence, part) for part in terms]
    minima = torch.zeros_like(strengths[0])
    minima[0] = LEAST_BETA
    strengths[:] = fit_strengths(terms[:2], labels, minima)
    if with_evidence.any():
        used, every = with_evidence[labels].nonzero().flatten(), bool(with_evidence.all())
        columns = (with_evidence.long().cumsum(dim=0) - 1)[labels[used]]

        def select(rows: Int[Tensor, "row"]) -> Float[Tensor, "term row class"]:
            values = terms[2](used[rows])
            return values if every else values[:, :, with_evidence]

        strengths[0] = fit_strengths([select], columns, minima)
    if with_evidence.any() and single:
        strengths[0, 1:] = ALONE * strengths[0, 0] * (freedom > 0) / freedom.sum().clamp(min=1).sqrt()
    return strengths


def without_evidence(terms: Terms, rows: Int[Tensor, "row"]) -> Float[Tensor, "term row class"]:
    """The terms of some images, where evidence is nothing."""
    values = terms(rows)
    values[1:] = 0
    return values


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


def fit_on(examples: Examples, fitted: Bool[Tensor, "item"], penalty: float) -> Float[Tensor, "embed embed"]:
    """M from all views of some images, among their classes; zero with one class."""
    present, targets = examples.labels[fitted].unique(return_inverse=True)
    if len(present) < 2:
        return examples.frozen.new_zeros(examples.frozen.shape[2], examples.frozen.shape[2])
    features, views = examples.frozen[fitted].flatten(0, 1), examples.frozen.shape[1]
    return fit_correction(features, targets.repeat_interleave(views), examples.text[present], penalty)


def compute_class_scores(examples: Examples, penalty: float) -> Scores:
    """f_cls t / tau of each image's test view, in each setting. M is from half of the images of the classes
    that are not left out: for an image of these, from the half that it is not in; for one of a left-out
    class, from the half of its own parity.
    """
    labels, odd, settings = examples.labels, examples.rank % 2 == 1, []
    for absent in examples.absent:
        left_out = absent[labels]
        scores = examples.text.new_zeros(len(labels), len(examples.text))
        for part in (False, True):
            change = fit_on(examples, ~left_out & (odd != part), penalty)
            scored = (odd == part) ^ left_out  # of left-out classes, M has no image at all
            scores[scored] = corrected(examples.frozen[scored, 0], change) @ examples.text.T
        settings.append(scores)
    return settings


def fit_evidence(
    examples: Examples,
    features: Float[Tensor, "item view embed"],
    with_evidence: Bool[Tensor, "class"],
    settings: DearPlusSettings,
    *,
    few: bool,
) -> Evidence:
    """The evidence of an attribute; ``few`` is `has_single_images`. The class of a left-out image has n - 1
    images, so its squared distance D grows by D / n^2: a share of the mean D over n^2 is what it lacks.
    """
    labels, spread = examples.labels, settings.spread
    classes, used = with_evidence.nonzero().flatten(), with_evidence[labels]
    columns = (with_evidence.long().cumsum(dim=0) - 1)[labels[used]]
    fitted = Gaussians(features[used], columns, len(classes), settings.shrinkage, spread if few else None)
    known = ~examples.absent[:, classes]
    distances = fitted.left_out(known)
    background = features.new_zeros(len(labels), len(known))
    squares = features.new_zeros(len(labels), len(with_evidence))
    for rows, of in ((used, distances), (~used, fitted.distances(features[~used, 0], known))):
        items = rows.nonzero().flatten()
        background[items] = compute_background(of, spread)
        squares[items[:, None], classes] = of.to_classes
    lacking, images = features.new_zeros(len(labels)), fitted.counts[columns]
    if few:  # without its only image a class has no evidence
        alone = used.nonzero().flatten()[images == 1]
        squares[alone, labels[alone]] = background[alone, 2]
    else:
        own = distances.to_classes.gather(1, columns.unsqueeze(1)).mean()
        lacking[used] = SURPLUS / 2 * own / images**2
    left_out = LeftOutEvidence(background, squares, ~examples.absent & with_evidence)
    center = fitted.means.mean(dim=0)
    means = (fitted.means - center) @ fitted.whitening
    return Evidence(means, center, fitted.whitening, fitted.freedom, left_out, lacking)


def build_no_evidence(
    examples: Examples, features: Float[Tensor, "item view embed"], with_evidence: Bool[Tensor, "class"]
) -> Evidence:
    """The evidence of an attribute that says nothing."""
    embed, items, settings = features.shape[2], len(features), len(examples.absent)
    means, center = features.new_zeros(int(with_evidence.sum()), embed), features.new_zeros(embed)
    whitening = features.new_zeros(embed, embed)
    left_out = LeftOutEvidence(
        features.new_zeros(items, settings),
        features.new_zeros(1, 1).expand(items, len(with_evidence)),
        torch.zeros_like(examples.absent),
    )
    return Evidence(means, center, whitening, features.new_zeros(()), left_out, features.new_zeros(items))


def bayes_factors(distances: Distances, setting: int, spread: float) -> Float[Tensor, "item class"]:
    """log N(f; mu_k, C) - log N(f; mu, (1 + rho) C), with mu the center of a setting."""
    return (compute_background(distances, spread)[:, setting, None] - distances.to_classes) / 2


def compute_background(distances: Distances, spread: float) -> Float[Tensor, "item setting"]:
    """What the squared distance to a class's mean is compared with, for each center."""
    return distances.to_centers / (1 + spread) + distances.freedom[:, None] * math.log1p(spread)
