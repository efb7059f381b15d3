"""All that DeAR+ computes from the readouts of its training images, in closed form or as a convex problem.
`DearPlus` says what is computed, and why.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import normalize

from dear.methods.dear_plus import DearPlusSettings
from dear.methods.dear_plus.correction import corrected, fit_correction
from dear.methods.dear_plus.gaussian import BayesFactors, Evidence, LabeledGaussians
from dear.methods.dear_plus.strengths import (
    EVERY,
    LeftOutTerms,
    fit_strengths,
    measure_name_cost,
    score_left_out,
)
from dear.methods.names import NameCost

LEAST_IMAGES = 2
"""Training images that a class needs for evidence: one of them is left out to see what it is worth."""
FOLDS = 8
"""Parts of the images in which groups are left out, those of a class in different ones."""
SURPLUS = 0.5
"""Share of a class's expected loss by an image left out that is made up for where strengths are fitted; with
all of it they are too sure.
"""


@dataclass(frozen=True)
class Examples:
    """Training images, all views of each, the test view first.

    Attributes:
        frozen: f_0.
        readouts: z_a / |e|.
        text: The text features of the classes, times 1 / tau.
        order: The place of each class in an order that is not that of the numbers, such as that of its name's
            hash: halves of classes are every other one.
        groups: The number of each image's group, which is left out as a whole; None if each is on its own.
    """

    frozen: Float[Tensor, "item view embed"]
    readouts: Float[Tensor, "item view attribute embed"]
    labels: Int[Tensor, "item"]
    text: Float[Tensor, "class embed"]
    order: Int[Tensor, "class"]
    groups: Int[Tensor, "item"] | None = None

    @cached_property
    def leader(self) -> Int[Tensor, "item"]:
        """The image of each one's group whose first number of features is the least."""
        if self.groups is None:
            return torch.arange(len(self.labels), device=self.labels.device)
        leaders, groups = dict[int, int](), self.groups.tolist()
        for item in self.frozen[:, 0, 0].argsort(stable=True).tolist():
            leaders.setdefault(groups[item], item)
        return torch.tensor([leaders[group] for group in groups], device=self.labels.device)

    @cached_property
    def images(self) -> Int[Tensor, "class"]:
        """How many there are of each class, each group as one."""
        labels, _ = torch.stack([self.labels, self.leader]).unique(dim=1)
        return torch.bincount(labels, minlength=len(self.text))

    @cached_property
    def mostly_alone(self) -> bool:
        """Whether most of the classes with images have a single one, which cannot be left out."""
        return 2 * int((self.images >= LEAST_IMAGES).sum()) < int((self.images > 0).sum())

    @cached_property
    def sets(self) -> Bool[Tensor, "set class"]:
        """The classes that count as ones with images: each half, and all."""
        odd = self.order % 2 == 1
        return torch.stack([odd, ~odd, torch.ones_like(odd)])

    @cached_property
    def rank(self) -> Int[Tensor, "item"]:
        """The place of each image's leader in its class by the first number of features, whatever the order
        of images is.
        """
        by_content = self.frozen[:, 0, 0].argsort(stable=True)
        by_content = by_content[self.leader[by_content] == by_content]
        in_classes = by_content[self.labels[by_content].argsort(stable=True)]
        counts = torch.bincount(self.labels[in_classes], minlength=len(self.text))
        starts = (counts.cumsum(dim=0) - counts)[self.labels[in_classes]]
        rank = torch.empty_like(self.labels)
        rank[in_classes] = torch.arange(len(in_classes), device=rank.device) - starts
        return rank[self.leader]

    @cached_property
    def fold(self) -> Int[Tensor, "item"]:
        """The part of the images in which each is left out."""
        return (self.rank + self.order[self.labels[self.leader]]) % FOLDS

    @cached_property
    def keeps_classes(self) -> bool:
        """True if every class keeps images, whatever part is left out."""
        left = (self.labels[self.fold != number].unique() for number in self.fold.unique())
        return all(len(labels) == len(self.text) for labels in left)


@dataclass(frozen=True)
class Fit:
    """What DeAR+ is made of, in float64.

    Attributes:
        correction: M.
        remainder: m of each attribute.
        evidence: Of each attribute, for the classes with evidence in their order.
        terms: The terms of left-out images.
        strengths: beta, then the alpha of each attribute: where all classes have evidence, and where half
            have none.
        name_cost: Of a class without images, beside classes with evidence.
        left_out: The scores of left-out images, with each set of classes.
        parts: The share of each term in the last of these scores: of the standard deviation over classes.
    """

    correction: Float[Tensor, "embed embed"]
    remainder: Float[Tensor, "attribute embed"]
    evidence: Sequence[Evidence]
    terms: LeftOutTerms
    strengths: Float[Tensor, "use feature"]
    name_cost: NameCost
    left_out: Sequence[Float[Tensor, "item class"]]
    parts: Float[Tensor, "feature"]

    @property
    def has_evidence(self) -> Bool[Tensor, "class"]:
        """Which classes have evidence."""
        return self.terms.has_evidence[EVERY]


def fit(examples: Examples, settings: DearPlusSettings) -> Fit:
    """Compute everything from images with labels."""
    images = torch.bincount(examples.labels, minlength=len(examples.text))
    has_evidence = images >= (1 if examples.mostly_alone else LEAST_IMAGES)
    if int(has_evidence.sum()) < 2:  # nothing to tell apart
        has_evidence = torch.zeros_like(has_evidence)
    remainder = (examples.frozen.unsqueeze(2) - examples.readouts).mean(dim=(0, 1))
    fits = [
        fit_evidence(examples, of, has_evidence, settings)
        for of in by_attribute(examples.readouts, remainder)
    ]
    evidence, factors, lacking = zip(*fits, strict=True)
    terms = LeftOutTerms(
        examples.labels,
        compute_class_scores(examples, settings.penalty),
        factors,
        examples.sets & has_evidence,
        lacking,
        examples.images[examples.labels] == 1,
        examples.mostly_alone,
    )
    everything = torch.ones_like(examples.labels, dtype=torch.bool)
    return with_strengths(fit_on(examples, everything, settings.penalty), remainder, evidence, terms)


def with_strengths(
    correction: Float[Tensor, "embed embed"],
    remainder: Float[Tensor, "attribute embed"],
    evidence: Sequence[Evidence],
    terms: LeftOutTerms,
) -> Fit:
    """Fit the strengths of both uses to left-out images, and score these."""
    strengths = fit_strengths(terms, torch.stack([of.freedom for of in evidence]))
    name_cost = measure_name_cost(terms, strengths)
    left_out, parts = score_left_out(terms, strengths, name_cost.threshold)
    return Fit(correction, remainder, evidence, terms, strengths, name_cost, left_out, parts)


def by_attribute(
    readouts: Float[Tensor, "*any attribute embed"], remainder: Float[Tensor, "attribute embed"]
) -> Float[Tensor, "attribute *any embed"]:
    """f_a = u(z_a / |e| + m_a)."""
    return normalize(readouts + remainder, dim=-1).movedim(-2, 0)


def fit_on(examples: Examples, fitted: Bool[Tensor, "item"], penalty: float) -> Float[Tensor, "embed embed"]:
    """M from all views of some images, among their classes; zero with one class."""
    present, targets = examples.labels[fitted].unique(return_inverse=True)
    if len(present) < 2:
        return examples.frozen.new_zeros(examples.frozen.shape[2], examples.frozen.shape[2])
    features, views = examples.frozen[fitted].flatten(0, 1), examples.frozen.shape[1]
    return fit_correction(features, targets.repeat_interleave(views), examples.text[present], penalty)


def compute_class_scores(examples: Examples, penalty: float) -> list[Float[Tensor, "item class"]]:
    """f_cls t / tau of each image's test view, with each set of classes. M is from half of the images of
    these: for an image of these classes, from the half that it is not in; for one of another class, from the
    half of its own parity.
    """
    odd, scores_of_sets = examples.rank % 2 == 1, []
    for classes in examples.sets:
        in_set = classes[examples.labels]
        scores = examples.text.new_zeros(len(in_set), len(examples.text))
        for half in (False, True):
            correction = fit_on(examples, in_set & (odd != half), penalty)
            scored = (odd == half) == in_set  # of other classes, M has no image at all
            scores[scored] = corrected(examples.frozen[scored, 0], correction) @ examples.text.T
        scores_of_sets.append(scores)
    return scores_of_sets


def fit_evidence(
    examples: Examples,
    features: Float[Tensor, "item view embed"],
    has_evidence: Bool[Tensor, "class"],
    settings: DearPlusSettings,
) -> tuple[Evidence, BayesFactors, Float[Tensor, "item"]]:
    """The evidence of an attribute, E of each image's test view as if the image, or its group, were new, and
    what that lacks: the class of a left-out image has n - 1 images, so its squared distance D grows by
    D / n^2, and a share of the mean D over n^2 is lacking.
    """
    labels, spread = examples.labels, settings.spread
    classes, used = has_evidence.nonzero().flatten(), has_evidence[labels]
    columns = (has_evidence.long().cumsum(dim=0) - 1)[labels[used]]
    fitted = LabeledGaussians(
        features[used],
        columns,
        len(classes),
        spread,
        settings.shrinkage,
        pooled=examples.mostly_alone,
        folds=None if examples.groups is None else examples.fold[used],
    )
    sets = examples.sets[:, classes]
    backgrounds = features.new_zeros(len(labels), len(sets))
    squares = features.new_zeros(len(labels), len(has_evidence))
    left_out, others = fitted.left_out(sets), fitted.factors(features[~used, 0], sets, spread)
    for rows, factors in ((used, left_out), (~used, others)):
        items = rows.nonzero().flatten()
        backgrounds[items], squares[items[:, None], classes] = factors.backgrounds, factors.squares
    lacking = features.new_zeros(len(labels))
    if examples.mostly_alone:  # without its only image a class has no evidence
        alone = (used & (examples.images[labels] == 1)).nonzero().flatten()
        squares[alone, labels[alone]] = backgrounds[alone, EVERY]
    else:
        images = examples.images[labels[used]]
        mean = left_out.squares.gather(1, columns.unsqueeze(1))[images > 1].mean()
        lacking[used] = SURPLUS / 2 * mean / images**2
    return fitted.evidence(), BayesFactors(squares, backgrounds), lacking
