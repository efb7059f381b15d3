"""All that DeAR+ computes from the readouts of its training images, in closed form or as a convex problem.
`DearPlus` says what is computed, and why.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import normalize

from dear.methods.dear_plus import DearPlusSettings
from dear.methods.dear_plus.gaussian import Distances, Gaussians
from dear.methods.dear_plus.solvers import fit_correction, fit_strengths

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
NAME_COST = 0.005
"""Share of left-out images of the other classes that a class by its name alone may take: new ones lose up to
twice as much on average, for half of the other classes are all that stand against it here.
"""

Scores = Sequence[Float[Tensor, "item class"]]
"""Numbers of the training images as if they were new, in three settings: as if one half of the classes had no
images, as if the other half had none, and with the images of all classes.
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
class Evidence:
    """The Gaussians of one attribute, in float64; zero for an attribute that no head carries.

    Attributes:
        means: w of each class with evidence.
        centre, whitening, freedom: mu, W and d.
        left_out: E of each image's test view as if the image were new, in each setting; 0 for classes that
            are left out, and for those without evidence.
        lacking: What the E of an image's own class lacks on average for the image left out, all classes
            known. It counts where strengths are fitted, and is not in the scores of left-out images.
    """

    means: Float[Tensor, "known embed"]
    centre: Float[Tensor, "embed"]
    whitening: Float[Tensor, "embed embed"]
    freedom: Float[Tensor, ""]
    left_out: Scores
    lacking: Float[Tensor, "item"]


@dataclass(frozen=True)
class NameCost:
    """What a class by its name alone does beside the others, measured on left-out images: each half of the
    classes with images is scored by name in turn, each class of it alone beside the other half.

    Attributes:
        threshold: What is taken from its score, so that it takes at most `NAME_COST` of the others' images.
        taken: The share of the images of other classes that were right and become the class.
        found: The share of its own images that become it.
        images: How many images were left out.
    """

    threshold: float
    taken: float
    found: float
    images: int


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
        parts: The share of each term in the scores of left-out images, all classes known: of the standard
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
    parts = zip(class_scores, *(of.left_out for of in evidence), strict=True)
    terms = [torch.stack(part, dim=2) for part in parts]
    freedom = torch.stack([of.freedom for of in evidence])
    whole = terms[2].clone()
    whole[torch.arange(len(labels)), labels, 1:] += torch.stack([of.lacking for of in evidence], dim=1)
    strengths = fit_uses([*terms[:2], whole], labels, with_evidence, freedom)
    known, is_single = with_evidence & ~examples.absent, has_single_images(images)
    cost = measure_name_cost(terms, labels, known, strengths, is_single=is_single)
    left_out = [score(part, strengths, of, cost.threshold) for part, of in zip(terms, known, strict=True)]
    if is_single:  # without its only image a class is one by name alone
        rows = images[labels] == 1
        left_out[2][rows] = terms[2][rows] @ strengths[1]
    spreads = strengths[use] * terms[2].std(dim=1).mean(dim=0) if len(with_evidence) > 1 else strengths[use]
    return Fit(
        *(correction, rest, with_evidence, evidence, strengths, cost),
        *(spreads / spreads.sum(), left_out, class_scores),
    )


def score(
    terms: Float[Tensor, "item class term"],
    strengths: Float[Tensor, "use term"],
    known: Bool[Tensor, "class"],
    threshold: float,
) -> Float[Tensor, "item class"]:
    """Scores as of a bundle: those of known classes do not depend on the others, which are beside them by
    name alone (`level_names`).
    """
    first, second = terms @ strengths[0], terms @ strengths[1]
    if known.all() or not known.any():
        return first if known.all() else second
    return first.where(known, second + level_names(first, second, known) - threshold)


def level_names(
    first: Float[Tensor, "item class"], second: Float[Tensor, "item class"], known: Bool[Tensor, "class"]
) -> Float[Tensor, "item 1"]:
    """What is added to the scores of classes by name alone, which have the second strengths, beside known
    classes with the first ones: the odds of each against all known classes stay those by the second ones.
    """
    first, second = (scores.masked_fill(~known, -torch.inf) for scores in (first, second))
    return first.logsumexp(dim=1, keepdim=True) - second.logsumexp(dim=1, keepdim=True)


def measure_name_cost(
    terms: Sequence[Float[Tensor, "item class term"]],
    labels: Int[Tensor, "item"],
    known: Bool[Tensor, "setting class"],
    strengths: Float[Tensor, "use term"],
    *,
    is_single: bool,
) -> NameCost:
    """The cost of a name, and the least threshold, from 0 on, that keeps it below `NAME_COST`. By the second
    strengths alone where most classes have a single image.
    """
    first_strengths = strengths[int(is_single)]
    has_images, taken, found, pairs = torch.bincount(labels, minlength=known.shape[1]) > 0, [], [], 0
    for part, is_known in zip(terms[:2], known[:2], strict=True):
        names = has_images & ~is_known
        if not is_known.any() or not names.any():
            continue
        first, second = part @ first_strengths, part @ strengths[1]
        best = first.masked_fill(~is_known, -torch.inf).max(dim=1)
        margins = second + level_names(first, second, is_known) - best.values[:, None]
        of_others = is_known[labels]
        taken.append(margins[of_others & (best.indices == labels)][:, names].flatten())
        found.append(margins[torch.arange(len(labels)), labels][names[labels]])
        pairs += int(of_others.sum()) * int(names.sum())
    if not pairs:
        return NameCost(0.0, 0.0, 0.0, 0)
    of_others, of_names = (torch.cat(parts) for parts in (taken, found))
    ranked = of_others.sort(descending=True).values
    at = int(NAME_COST * pairs)
    threshold = max(0.0, float(ranked[at])) if at < len(ranked) else 0.0
    shares = float((of_others > threshold).sum()) / pairs, float((of_names > threshold).double().mean())
    return NameCost(threshold, *shares, len(of_names))


def fit_uses(
    terms: Sequence[Float[Tensor, "item class term"]],
    labels: Int[Tensor, "item"],
    with_evidence: Bool[Tensor, "class"],
    freedom: Float[Tensor, "attribute"],
) -> Float[Tensor, "use term"]:
    """beta and the alphas where all classes have evidence, and where half have none (`DearPlus`)."""
    single = has_single_images(torch.bincount(labels, minlength=len(with_evidence)))
    strengths = torch.zeros_like(terms[0][0, 0]).repeat(2, 1)
    strengths[:, 0] = 1
    if len(with_evidence) < 2:
        return strengths
    if single:  # evidence that would count needs an image that can be left out
        terms = [torch.cat([part[..., :1], torch.zeros_like(part[..., 1:])], dim=2) for part in terms]
    minima = torch.zeros_like(strengths[0])
    minima[0] = LEAST_BETA
    strengths[:] = fit_strengths(terms[:2], labels, minima)
    if with_evidence.any():
        used = with_evidence[labels]
        columns = (with_evidence.long().cumsum(dim=0) - 1)[labels[used]]
        strengths[0] = fit_strengths([terms[2][used][:, with_evidence]], columns, minima)
    if with_evidence.any() and single:
        strengths[0, 1:] = ALONE * strengths[0, 0] * (freedom > 0) / freedom.sum().clamp(min=1).sqrt()
    return strengths


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
    of_rows = [(used, distances), (~used, fitted.distances(features[~used, 0], known))]
    left_out = []
    for number, is_known in enumerate(known):
        factors = features.new_zeros(len(labels), len(with_evidence))
        for rows, of in of_rows:
            part = factors.new_zeros(int(rows.sum()), len(with_evidence))
            part[:, classes] = bayes_factors(of, number, spread) * is_known
            factors[rows] = part
        left_out.append(factors)
    lacking, images = features.new_zeros(len(labels)), fitted.counts[columns]
    if few:
        left_out[2][used, labels[used]] *= images > 1
    else:
        own = distances.to_classes.gather(1, columns.unsqueeze(1)).mean()
        lacking[used] = SURPLUS / 2 * own / images**2
    center = fitted.means.mean(dim=0)
    means = (fitted.means - center) @ fitted.whitening
    return Evidence(means, center, fitted.whitening, fitted.freedom, left_out, lacking)


def build_no_evidence(
    examples: Examples, features: Float[Tensor, "item view embed"], with_evidence: Bool[Tensor, "class"]
) -> Evidence:
    """The evidence of an attribute that says nothing."""
    embed, nothing = features.shape[2], features.new_zeros(len(features), len(with_evidence))
    means, center = features.new_zeros(int(with_evidence.sum()), embed), features.new_zeros(embed)
    whitening = features.new_zeros(embed, embed)
    left_out = [nothing] * len(examples.absent)
    return Evidence(means, center, whitening, features.new_zeros(()), left_out, nothing[:, 0])


def bayes_factors(distances: Distances, setting: int, spread: float) -> Float[Tensor, "item class"]:
    """log N(f; mu_k, C) - log N(f; mu, (1 + rho) C), with mu the center of a setting."""
    background = distances.to_centers[:, setting] / (1 + spread) + distances.freedom * math.log1p(spread)
    return (background.unsqueeze(1) - distances.to_classes) / 2
