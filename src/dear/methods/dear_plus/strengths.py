"""The strengths of DeAR+'s terms, fitted to left-out images, and what a class by name alone then costs the
classes with images. `DearPlus` says why.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from dear.methods.dear_plus.gaussian import BayesFactors
from dear.methods.names import NameCost, NameMargins, measure_names, split_by_name
from dear.methods.stacking import SCORES_AT_ONCE, Values, fit_term_weights

PRIOR = 1e-3
"""Weight of the squared strengths: they stay finite where the terms separate all training images."""
LEAST_BETA = 0.01
"""beta never reaches 0, at which classes without images could not be told apart."""
ALPHA_OF_SINGLES = 0.5
"""alpha over beta, times the root of the degrees of freedom of all evidence, where most classes have one
image.
"""
EVERY = 2
"""The set in which all classes have their images."""


@dataclass(frozen=True)
class LeftOutTerms:
    """The terms of the scores of training images as if they were new, before they are weighted, where a set
    of classes counts as the ones with images: each half of them, and all.

    Attributes:
        class_scores: f_cls t / tau of each set.
        factors: E of each attribute.
        has_evidence: The classes with evidence in each set; E of the others is 0.
        lacking: What the E of an image's label lacks on average for the image left out, with all classes. It
            counts where strengths are fitted, and is in no score.
        alone: The images that are the only one of their class, or all of one group.
        mostly_alone: Whether most classes with images have only such, which cannot be left out.
    """

    labels: Int[Tensor, "item"]
    class_scores: Sequence[Float[Tensor, "item class"]]
    factors: Sequence[BayesFactors]
    has_evidence: Bool[Tensor, "set class"]
    lacking: Sequence[Float[Tensor, "item"]]
    alone: Bool[Tensor, "item"]
    mostly_alone: bool

    def of_items(self, items: Bool[Tensor, "item"]) -> "LeftOutTerms":
        """Those of some of the images."""
        return replace(
            self,
            labels=self.labels[items],
            class_scores=[scores[items] for scores in self.class_scores],
            factors=[BayesFactors(of.squares[items], of.backgrounds[items]) for of in self.factors],
            lacking=[lacking[items] for lacking in self.lacking],
            alone=self.alone[items],
        )

    def batches(
        self, number: int, items: Int[Tensor, "item"] | None = None
    ) -> Iterator[tuple[Int[Tensor, "row"], Values]]:
        """The terms of all or some images in a set, of a few rows at a time."""
        scores, has_evidence = self.class_scores[number], self.has_evidence[number]
        items = torch.arange(len(scores), device=scores.device) if items is None else items
        for rows in items.split(max(1, SCORES_AT_ONCE // scores.shape[1])):
            factors = (factors.among(number, rows) * has_evidence for factors in self.factors)
            yield rows, torch.stack([scores[rows], *factors])


def fit_strengths(terms: LeftOutTerms, freedom: Float[Tensor, "attribute"]) -> Float[Tensor, "use term"]:
    """beta and the alphas where all classes have evidence, and where half have none."""
    has_evidence, labels = terms.has_evidence[EVERY], terms.labels
    strengths = freedom.new_zeros(2, 1 + len(freedom))
    strengths[:, 0] = 1
    if len(has_evidence) < 2:
        return strengths
    # Evidence that would count needs an image that can be left out.
    fitted = 1 if terms.mostly_alone else 1 + len(freedom)
    minima = torch.zeros_like(strengths[0, :fitted])
    minima[0] = LEAST_BETA

    def with_halves() -> Iterator[tuple[Values, Int[Tensor, "row"]]]:
        for number in range(EVERY):
            for rows, values in terms.batches(number):
                yield values[:fitted], labels[rows]

    def with_all() -> Iterator[tuple[Values, Int[Tensor, "row"]]]:
        columns = has_evidence.long().cumsum(dim=0) - 1
        can_leave = has_evidence[labels] & (~terms.alone | terms.mostly_alone)
        for rows, values in terms.batches(EVERY, can_leave.nonzero().flatten()):
            for values_of, lacking in zip(values[1:], terms.lacking, strict=True):
                values_of[torch.arange(len(rows)), labels[rows]] += lacking[rows]
            values = values if has_evidence.all() else values[:, :, has_evidence]
            yield values[:fitted], columns[labels[rows]]

    strengths[:, :fitted] = fit_term_weights(with_halves, minima, PRIOR)
    if has_evidence.any():
        strengths[0, :fitted] = fit_term_weights(with_all, minima, PRIOR)
        if terms.mostly_alone:
            strengths[0, 1:] = (
                ALPHA_OF_SINGLES * strengths[0, 0] * (freedom > 0) / freedom.sum().clamp(min=1).sqrt()
            )
    return strengths


def weigh(
    terms: Values,
    strengths: Float[Tensor, "use term"],
    has_evidence: Bool[Tensor, "class"],
    threshold: Tensor | float,
) -> Values:
    """Weighted terms with classes by name alone, as of a bundle: classes with evidence keep the first
    strengths, and the odds of each of the others against all of them stay those by the second ones, less the
    threshold.
    """
    first, second = (used.view(-1, 1, 1) * terms for used in strengths)
    level = level_names(first.sum(dim=0), second.sum(dim=0), has_evidence) - threshold
    weighted: Tensor = first.where(has_evidence, torch.cat([second[:1] + level, second[1:]]))
    return weighted


def level_names(
    first: Float[Tensor, "item class"],
    second: Float[Tensor, "item class"],
    has_evidence: Bool[Tensor, "class"],
) -> Float[Tensor, "item 1"]:
    """What is added to the scores of classes by name alone, which have the second strengths, beside classes
    with evidence and the first ones: the odds of each against all of these stay those by the second ones.
    """
    first, second = (scores.masked_fill(~has_evidence, -torch.inf) for scores in (first, second))
    return first.logsumexp(dim=1, keepdim=True) - second.logsumexp(dim=1, keepdim=True)


def measure_name_cost(terms: LeftOutTerms, strengths: Float[Tensor, "use term"]) -> NameCost:
    """The cost of a name, of each half of the classes with images beside the other half. By the second
    strengths alone where most classes have a single image.
    """
    labels, names = terms.labels, list[NameMargins]()
    has_images = torch.bincount(labels, minlength=terms.has_evidence.shape[1]) > 0
    for number, has_evidence in enumerate(terms.has_evidence[:EVERY]):
        tried = (has_images & ~has_evidence).nonzero().flatten()
        if not has_evidence.any() or not len(tried):
            continue
        numbers = torch.full_like(labels[:1], -1).repeat(len(has_images))
        numbers[tried] = torch.arange(len(tried), device=labels.device)
        taken, of_taken, own, of_own = ([] for _ in range(4))
        for rows, values in terms.batches(number):
            first, second = (torch.tensordot(used, values, dims=1) for used in strengths)
            first = second if terms.mostly_alone else first
            best = first.masked_fill(~has_evidence, -torch.inf).max(dim=1)
            margins = second + level_names(first, second, has_evidence) - best.values[:, None]
            is_right = best.indices == labels[rows]
            is_taken = is_right[:, None] & (numbers >= 0) & (margins > 0)  # a threshold is never below
            taken.append(margins[is_taken])
            of_taken.append(numbers[is_taken.nonzero()[:, 1]])
            is_own = numbers[labels[rows]] >= 0
            own.append(margins.gather(1, labels[rows, None])[is_own, 0])
            of_own.append(numbers[labels[rows]][is_own])
        pairs = [int(has_evidence[labels].sum())] * len(tried)
        of_names = [
            split_by_name(torch.cat(found), torch.cat(numbered), len(tried))
            for found, numbered in ((taken, of_taken), (own, of_own))
        ]
        names += [NameMargins(*each) for each in zip(*of_names, pairs, strict=True)]
    return measure_names(names)


def score_left_out(
    terms: LeftOutTerms, strengths: Float[Tensor, "use term"], threshold: float
) -> tuple[list[Float[Tensor, "item class"]], Float[Tensor, "term"]]:
    """The scores of left-out images in each set, and the share of each term in the last ones: of the standard
    deviation over classes.
    """
    scores_of_sets = [torch.empty_like(scores) for scores in terms.class_scores]
    shares = strengths[int(not terms.has_evidence[EVERY].all())].clone()
    deviations = torch.zeros_like(shares)
    for number, (scores, has_evidence) in enumerate(zip(scores_of_sets, terms.has_evidence, strict=True)):
        for rows, values in terms.batches(number):
            if has_evidence.all() or not has_evidence.any():
                scores[rows] = torch.tensordot(strengths[int(not has_evidence.all())], values, dims=1)
            else:
                scores[rows] = weigh(values, strengths, has_evidence, threshold).sum(dim=0)
            if number == EVERY and terms.mostly_alone:  # without its only image a class is one by name alone
                by_name = torch.tensordot(strengths[1], values, dims=1)
                scores[rows] = by_name.where(terms.alone[rows, None], scores[rows])
            if number == EVERY and len(has_evidence) > 1:
                deviations += values.std(dim=2).sum(dim=1)
    shares = shares * deviations if deviations.any() else shares
    return scores_of_sets, shares / shares.sum()
