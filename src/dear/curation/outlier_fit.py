"""How an `OutlierModel` is fitted: to the images without some of them, by which these are scored."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from dear.curation.outliers import FEWEST, SPREAD, OutlierModel, compute_evidence
from dear.methods.dear_plus.fitting import LEAST_IMAGES
from dear.methods.dear_plus.gaussian import LabeledGaussians

FOLDS, MOST_FOLDS = 5, 10
"""The fewest and the most parts of the images, each of which is left out of one fit. A left-out image is
compared by fits that lack two parts, a new one by fits that lack one: the more parts, the more alike.
"""
IN_FOLD, MANY = 8, 1000
"""Groups that each of more than five parts has at least; and groups with which five parts are enough."""
FEWEST_FOR_FOLDS = 3
"""Images of the median class from which a fit without two folds is like one without a fold."""
QUANTILES = 1001
"""Left-out images that stand for many."""

OfClasses = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]
"""The means, center, whitening, freedom and counts of an `OutlierModel`, of one fit."""
ROUNDING = 1e-6
Mask = Bool[Tensor, "item"]


def fit_outlier_model(
    features: Float[Tensor, "item embed"],
    labels: Int[Tensor, "item"],
    classes: int,
    groups: Int[Tensor, "item"] | None = None,
) -> tuple[OutlierModel, Float[Tensor, "item"]] | None:
    """From the unit image features of training images, and the `OutlierModel.rank` that each of these has
    where it is left out itself; infinite if it cannot be. None unless there are `FEWEST` images in two
    classes of two images each: of a single image nothing can be left out.

    Args:
        groups: The number of each image's group, which counts as one; each image is one if None.
    """
    number = torch.arange(len(labels), device=labels.device) if groups is None else groups.to(labels.device)
    of_classes = torch.stack([labels, number]).unique(dim=1)[0]
    has_several = torch.bincount(of_classes, minlength=classes) >= LEAST_IMAGES
    used, count = has_several[labels], int(has_several.sum())
    known = number[used].unique()
    if count < 2 or len(known) < FEWEST:
        return None
    columns = (has_several.long().cumsum(dim=0) - 1)[labels[used]]
    images = TrainingFeatures(
        features.double()[used], columns, torch.searchsorted(known, number[used]), count
    )
    shrinkage, (left_out, ranked) = images.choose_shrinkage(), images.draw_parts()
    fits, moments = list[OfClasses](), list[Float[Tensor, "2"]]()
    for part in left_out:
        if (fit := images.fit(~part, shrinkage)) is not None:
            rows, largest = images.score(fit, part)
            location, scale = measure_moments(largest, images.numbers[rows])
            if scale > 0:
                fits.append(fit)
                moments.append(torch.stack([location, scale]))
    scores, items = images.score_left_out(ranked, shrinkage)
    if not fits or not len(items):
        return None
    numbers = images.numbers[items]
    sizes = torch.bincount(numbers)
    weights = 1 / sizes[numbers].to(scores)
    below, (kept, kept_weights) = count_below(scores, weights, numbers), summarize(scores, weights)
    location, scale = torch.stack(moments).T.float()
    means, center, whitening, freedom, counts = (
        torch.stack(part).float() for part in zip(*fits, strict=True)
    )
    model = OutlierModel(
        classes=has_several.nonzero().flatten(),
        means=means,
        center=center,
        whitening=whitening,
        freedom=freedom,
        counts=counts,
        location=location,
        scale=scale,
        left_out=scores[kept].float(),
        weight=kept_weights.float(),
        below=below[kept].float(),
        images=sizes.sum(),
        groups=(sizes > 0).sum(),
    )
    ranks = features.new_full((len(features),), math.inf, dtype=torch.float64)
    ranks[used.nonzero().flatten()[items]] = below
    return model, ranks


@dataclass(frozen=True)
class TrainingFeatures:
    """Unit features of training images, the column of each one's class, and the number of its group."""

    points: Float[Tensor, "item embed"]
    columns: Int[Tensor, "item"]
    numbers: Int[Tensor, "item"]
    classes: int

    @property
    def is_grouped(self) -> bool:
        """Whether a group has several images."""
        return len(self.numbers.unique()) < len(self.numbers)

    def draw_parts(self) -> tuple[list[Mask], list[tuple[Mask, Mask]]]:
        """The images that are left out of each fit by which new ones are scored; and images that are ranked,
        each time beside others that are left out of the same fit. Those are folds, and these pairs of folds,
        both ways. Of two images of a class, a left-out one has the class at half its size, so where the
        median class has two, new ones are scored by the fits without two folds too, which lack as much.
        """
        group, sizes = self._groups_in_order(), torch.bincount(self.columns)
        is_like_new = self.is_grouped or float(sizes[sizes > 0].double().median()) >= FEWEST_FOR_FOLDS
        folds = count_folds(len(group)) if is_like_new else min(FOLDS, len(group) // 2)
        parts = [self._images_of(group[fold::folds]) for fold in range(folds)]  # a class is in many of them
        pairs = [*combinations(parts, 2)]
        if not is_like_new:
            parts = [first | second for first, second in pairs]
            return parts, [(part, part) for part in parts]
        return parts, [ranked for pair in pairs for ranked in (pair, pair[::-1])]

    def _groups_in_order(self) -> Int[Tensor, "group"]:
        """The groups of one class after the other; by content, so that neither the order of images nor that
        of classes matters.
        """
        first, groups = self.points[:, 0], int(self.numbers.max()) + 1
        of_group = first.new_full((groups,), math.inf).scatter_reduce(0, self.numbers, first, "amin")
        column = self.columns.new_zeros(groups).scatter_reduce(0, self.numbers, self.columns, "amax")
        of_class = first.new_full((self.classes,), math.inf).scatter_reduce(0, column, of_group, "amin")
        by_content = of_group.argsort(stable=True)
        return by_content[of_class[column[by_content]].argsort(stable=True)]

    def _images_of(self, groups: Int[Tensor, "part"]) -> Mask:
        return torch.isin(self.numbers, groups)

    def choose_shrinkage(self) -> float:
        """The shrinkage of the covariance, as for a fit to all images."""
        folds = None
        if self.is_grouped:
            group = self._groups_in_order()
            fold_of = torch.empty_like(group)
            fold_of[group] = torch.arange(len(group), device=group.device) % FOLDS
            folds = fold_of[self.numbers]
        return LabeledGaussians(
            self.points[:, None], self.columns, self.classes, SPREAD, folds=folds
        ).shrinkage

    def fit(self, rest: Mask, shrinkage: float) -> OfClasses | None:
        """The classes of the ``rest`` of the images. None if nothing varies within classes."""
        present, targets = self.columns[rest].unique(return_inverse=True)
        if len(present) < 2:
            return None
        gaussians = LabeledGaussians(self.points[rest][:, None], targets, len(present), SPREAD, shrinkage)
        if len(present) == len(targets) or not gaussians.variance > 0:
            return None
        fitted, of_groups = gaussians.evidence(), torch.stack([self.columns[rest], self.numbers[rest]])
        means = self.points.new_zeros(self.classes, self.points.shape[1])
        counts = torch.bincount(of_groups.unique(dim=1)[0], minlength=self.classes).to(means)
        means = means.index_copy(0, present, fitted.means)
        return means, fitted.center, fitted.whitening, fitted.freedom, counts

    def score(self, fit: OfClasses, left_out: Mask) -> tuple[Int[Tensor, "row"], Float[Tensor, "row"]]:
        """The left-out images of classes that a fit knows, and their largest evidence."""
        rows = (left_out & (fit[-1][self.columns] > 0)).nonzero().flatten()
        return rows, compute_evidence(self.points[rows], *fit).amax(dim=1)

    def score_left_out(
        self, ranked: list[tuple[Mask, Mask]], shrinkage: float
    ) -> tuple[Float[Tensor, "left_out"], Int[Tensor, "left_out"]]:
        """What left-out images get (`OutlierModel`), and which these are."""
        sums, times = self.points.new_zeros(len(self.points)), torch.zeros_like(self.numbers)
        for own, others in ranked:
            if (fit := self.fit(~(own | others), shrinkage)) is not None:
                rows, largest = self.score(fit, own)
                among, of_others = self.score(fit, others)
                location, scale = measure_moments(of_others, self.numbers[among], self.numbers[rows])
                is_known = scale > 0
                rows = rows[is_known]
                sums[rows] += ((largest - location) / scale)[is_known]
                times[rows] += 1
        items = times.nonzero().flatten()
        return sums[items] / times[items], items


def count_folds(groups: int) -> int:
    """The parts of so many groups."""
    most = FOLDS if groups > MANY else MOST_FOLDS
    return min(max(FOLDS, min(groups // IN_FOLD, most)), groups // 2)


def measure_moments(
    values: Float[Tensor, "item"], groups: Int[Tensor, "item"], without: Int[Tensor, "other"] | None = None
) -> tuple[Float[Tensor, "*other"], Float[Tensor, "*other"]]:
    """The mean and the standard deviation of values, of which those of a group count as one; for each of the
    groups ``without`` that one. The deviation of none is 0.
    """
    size = 1 + max(
        int(numbers.max()) if len(numbers) else 0 for numbers in (groups, without) if numbers is not None
    )
    weights = 1 / torch.bincount(groups, minlength=size)[groups].to(values)
    center = values.mean() if len(values) else values.sum()
    apart = values - center
    powers = torch.stack([weights, weights * apart, weights * apart.square()])
    of_groups = values.new_zeros(3, size).index_add(1, groups, powers)
    total, first, second = of_groups.sum(dim=1, keepdim=True) - (
        torch.zeros_like(of_groups[:, :1]) if without is None else of_groups[:, without]
    )
    mean = first / total.clamp(min=1)
    deviation = (second / total.clamp(min=1) - mean.square()).clamp(min=0).sqrt()
    deviation = deviation.where(total > 1 + ROUNDING, 0)
    return (center + mean, deviation) if without is not None else (center + mean[0], deviation[0])


def count_below(
    scores: Float[Tensor, "item"], weights: Float[Tensor, "item"], numbers: Int[Tensor, "item"]
) -> Float[Tensor, "item"]:
    """How many groups but its own get at most what each image gets, each counted by its share of images."""
    in_order, order = scores.sort()
    sums = torch.cat([weights.new_zeros(1), weights[order].cumsum(dim=0)])
    below = sums[torch.searchsorted(in_order, scores, right=True)]
    for rows in _items_of_groups(numbers):
        own = scores[rows]
        below[rows] -= torch.searchsorted(own.sort().values, own, right=True) * weights[rows]
    return below


def _items_of_groups(numbers: Int[Tensor, "item"]) -> Iterator[Int[Tensor, "row"]]:
    sizes = numbers.unique(return_counts=True)[1].tolist()
    yield from numbers.argsort(stable=True).split(sizes)


def summarize(
    values: Float[Tensor, "item"], weights: Float[Tensor, "item"]
) -> tuple[Int[Tensor, "quantile"], Float[Tensor, "quantile"]]:
    """The items in the order of their values, and their weights; of many, the least of each of `QUANTILES`
    parts of equal weight.
    """
    order = values.argsort()
    weights = weights[order]
    if len(values) <= QUANTILES:
        return order, weights
    total, sums = weights.sum(), weights.cumsum(dim=0)
    starts = torch.arange(QUANTILES, device=values.device) / QUANTILES * total
    chosen = torch.searchsorted(sums, starts, right=True).clamp(max=len(values) - 1)
    return order[chosen], (total / QUANTILES).expand(QUANTILES)
