"""How an `OutlierModel` is fitted: to all images but those of a fold, and for ranks but those of two."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations
from statistics import fmean

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from dear.curation.outliers import FEWEST, SPREAD, OutlierModel, compute_evidence
from dear.methods.dear_plus.fitting import LEAST_IMAGES
from dear.methods.dear_plus.gaussian import LabeledGaussians

FOLDS = 5
"""Parts of the images, each of which is left out of one fit."""
QUANTILES = 1001
"""Left-out images that stand for many."""

OfClasses = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]
"""The means, center, whitening, freedom and counts of an `OutlierModel`, of one fit."""


def fit_outlier_model(
    features: Float[Tensor, "item embed"],
    labels: Int[Tensor, "item"],
    classes: int,
    groups: Int[Tensor, "item"] | None = None,
) -> OutlierModel | None:
    """From the unit image features of training images. None unless there are `FEWEST` images in two classes
    of two images each: of a single image nothing can be left out.

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
    folds = images.draw_folds(min(FOLDS, len(known) // 2))
    parts, shrinkages, moments = list[OfClasses](), list[float](), list[Float[Tensor, "2"]]()
    for fold in folds.unique():
        rest, left_out = folds != fold, folds == fold
        if (fitted := images.fit(rest, folds if images.is_grouped else None)) is not None:
            *of_part, shrinkage = fitted
            rows, largest = images.score(of_part, left_out)
            location, scale = measure_moments(largest, images.numbers[rows])
            if scale > 0:
                parts.append(tuple(of_part))
                shrinkages.append(shrinkage)
                moments.append(torch.stack([location, scale]))
    if not parts:
        return None
    scores, items = images.score_left_out(folds, math.exp(fmean(map(math.log, shrinkages))))
    if not len(items):
        return None
    numbers = images.numbers[items]
    sizes = torch.bincount(numbers)
    weights = 1 / sizes[numbers].to(scores)
    below, (kept, kept_weights) = count_below(scores, weights, numbers), summarize(scores, weights)
    location, scale = torch.stack(moments).T.float()
    means, center, whitening, freedom, counts = (
        torch.stack(part).float() for part in zip(*parts, strict=True)
    )
    return OutlierModel(
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

    def draw_folds(self, folds: int) -> Int[Tensor, "item"]:
        """The fold of each image: those of a group in one, the groups of a class in different ones, as far as
        there are, and as many in each. Drawn by content, so that neither the order of images nor that of
        classes matters.
        """
        first, groups = self.points[:, 0], int(self.numbers.max()) + 1
        of_group = first.new_full((groups,), math.inf).scatter_reduce(0, self.numbers, first, "amin")
        column_of = self.columns.new_zeros(groups).scatter_reduce(0, self.numbers, self.columns, "amax")
        of_class = first.new_full((self.classes,), math.inf).scatter_reduce(0, column_of, of_group, "amin")
        by_content = of_group.argsort(stable=True)
        in_classes = by_content[of_class[column_of[by_content]].argsort(stable=True)]
        fold_of = torch.empty_like(in_classes)
        fold_of[in_classes] = torch.arange(groups, device=fold_of.device) % folds
        return fold_of[self.numbers]

    def fit(
        self,
        rest: Bool[Tensor, "item"],
        folds: Int[Tensor, "item"] | None = None,
        shrinkage: float | None = None,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, float] | None:
        """The classes of the ``rest`` of the images, and the shrinkage, which is chosen by leaving ``folds``
        out unless it is given. None if nothing varies within classes.
        """
        present, targets = self.columns[rest].unique(return_inverse=True)
        if len(present) < 2 or len(present) == len(targets):
            return None
        inner = None if folds is None else folds[rest]
        gaussians = LabeledGaussians(
            self.points[rest][:, None], targets, len(present), SPREAD, shrinkage, folds=inner
        )
        fitted, of_groups = gaussians.evidence(), torch.stack([self.columns[rest], self.numbers[rest]])
        means = self.points.new_zeros(self.classes, self.points.shape[1])
        counts = torch.bincount(of_groups.unique(dim=1)[0], minlength=self.classes).to(means)
        of_classes = means.index_copy(0, present, fitted.means), fitted.center, fitted.whitening
        return *of_classes, fitted.freedom, counts, gaussians.shrinkage

    def score(
        self, of_classes: OfClasses, left_out: Bool[Tensor, "item"]
    ) -> tuple[Int[Tensor, "row"], Float[Tensor, "row"]]:
        """The left-out images of classes that a fit knows, and their largest evidence."""
        rows = (left_out & (of_classes[-1][self.columns] > 0)).nonzero().flatten()
        return rows, compute_evidence(self.points[rows], *of_classes).amax(dim=1)

    def score_left_out(
        self, folds: Int[Tensor, "item"], shrinkage: float
    ) -> tuple[Float[Tensor, "left_out"], Int[Tensor, "left_out"]]:
        """What left-out images get (`OutlierModel`), and which these are."""
        sums, times = self.points.new_zeros(len(folds)), torch.zeros_like(folds)
        for first, second in combinations(folds.unique().tolist(), 2):
            parts = [folds == first, folds == second]
            if (fitted := self.fit(~(parts[0] | parts[1]), shrinkage=shrinkage)) is None:
                continue
            scored = [self.score(fitted[:5], part) for part in parts]
            for (rows, largest), (others, of_others) in (scored, scored[::-1]):
                location, scale = measure_moments(of_others, self.numbers[others])
                if scale > 0:
                    sums[rows] += (largest - location) / scale
                    times[rows] += 1
        items = times.nonzero().flatten()
        return sums[items] / times[items], items


def measure_moments(
    values: Float[Tensor, "item"], numbers: Int[Tensor, "item"]
) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
    """The mean and the standard deviation of values, each group of which counts once; zero of none."""
    if not len(values):
        return values.new_zeros(()), values.new_zeros(())
    weights = 1 / torch.bincount(numbers)[numbers].to(values)
    location = (weights * values).sum() / weights.sum()
    return location, ((weights * (values - location).square()).sum() / weights.sum()).sqrt()


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
