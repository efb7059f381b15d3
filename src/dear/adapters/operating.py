"""The operating point of a classifier: which images it decides by itself, and which go to a person. Light to
import: numpy is loaded when it is first used.

A precision is promised by a threshold of the probability of the best class, which is chosen on images that
the classifier was not fitted on. Costs of mistakes and of a person decide each image by its expected cost.
"""

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from dear.adapters.costs import ASK, CostTable, read_costs
from dear.errors import DataError, SettingsError
from dear.reading.typed import Number, Range, Share, check_value
from dear.stats import exact_share_bounds, group_share_interval, mean_interval

if TYPE_CHECKING:
    from numpy.typing import NDArray

DECIDED, TO_A_PERSON = "decided", ASK
"""What a prediction says of an image."""
STEPS, FIRST = 20, 4
"""Parts of the images, by their confidence, after each of which a threshold is tried; and how many of them
the first one decides at least: fewer would hardly spare a person any work."""
FORGIVEN = 2
"""Wrong images, or groups of them, of which the first threshold may decide so many, if half of all images
show the promise then: a single wrong image among the surest ends no search."""
Precision = Annotated[float, Range(0.5, 1, below=True)]
ImageCount = Annotated[int, Range(0, 2**31)]


@dataclass(frozen=True)
class Decided:
    """What a classifier decides of labeled images that it was not fitted on.

    Attributes:
        images, groups: How many images there are, and of how many groups; an image that is in none is one.
        decided, right: How many of them are decided, and how many of these rightly.
        low, high: Bounds of the share of decided images that are right, each at 95%, by groups.
        interval: That of the share of images that are decided, at 95%, by groups.
        per_class: For each class that is decided, how many images become it, how many of these are right,
            and the bounds of that share.
        cost, cost_interval: The mean cost of an image, and its interval at 95%; 0 without costs. Where a
            person has no cost, it is that of the decided images.
        cost_of_best, cost_of_person: The mean cost if every image had its most probable class, and if every
            image went to a person.
    """

    images: ImageCount
    groups: ImageCount
    decided: ImageCount
    right: ImageCount
    low: Share
    high: Share
    interval: tuple[Share, Share]
    per_class: Mapping[str, tuple[ImageCount, ImageCount, Share, Share]] = field(default_factory=dict)
    cost: Number = 0.0
    cost_interval: tuple[Number, Number] = (0.0, 0.0)
    cost_of_best: Number = 0.0
    cost_of_person: Number | None = None

    def __post_init__(self) -> None:
        if not self.images or not self.right <= self.decided <= self.images:
            raise DataError("more images are decided, or right, than there are.")


@dataclass(frozen=True)
class OperatingPoint:
    """Which images a classifier decides.

    Attributes:
        precision: The promised share of decided images that are right; None with costs.
        threshold: The least probability at which the best class is decided; None if no image is.
        by_class: The same for each class by itself, None for one that is never decided; None if all have one.
        costs: The costs by which each image is decided, if there are any.
        split: The images on which it was chosen: "cross-validation" for training images, each left out.
        measured: What it decides of those; None if there were none.
    """

    precision: Precision | None = None
    threshold: Share | None = None
    by_class: Mapping[str, Share | None] | None = None
    costs: CostTable | None = None
    split: str = ""
    measured: Decided | None = None

    def __post_init__(self) -> None:
        if (self.precision is None) == (self.costs is None):
            raise DataError("an operating point has either a precision or costs.")

    def threshold_of(self, name: str) -> float:
        """The least probability at which a class is decided; infinite if it never is."""
        threshold = self.threshold if self.by_class is None else self.by_class.get(name)
        return math.inf if threshold is None else threshold

    def decide(
        self,
        probabilities: "NDArray[Any]",
        classes: Sequence[str],
        refused: "NDArray[Any] | None" = None,
    ) -> "NDArray[Any]":
        """The number of the class that each image, item x class, is decided to be of; -1 for one that goes to
        a person, as those do that are ``refused`` as of none of the classes.
        """
        import numpy as np

        if self.costs is not None:
            choices = self.costs.decide(probabilities, classes)
        else:
            choices = decide_by_thresholds(probabilities, [self.threshold_of(name) for name in classes])
        return choices if refused is None else np.where(refused, -1, choices)


def decide_by_thresholds(probabilities: "NDArray[Any]", thresholds: Sequence[float]) -> "NDArray[Any]":
    """As `OperatingPoint.decide`, by the least probability at which each class is decided."""
    import numpy as np

    best = probabilities.argmax(axis=1)
    is_decided = probabilities[np.arange(len(best)), best] >= np.array(thresholds)[best]
    return np.where(is_decided, best, -1)


def name_choices(
    choices: "NDArray[Any]", refused: Sequence[bool], classes: Sequence[str]
) -> list[tuple[str, str]]:
    """Whether each image is decided or goes to a person, as those do that are ``refused`` as of none of the
    classes, and the class that it is decided to be of.
    """
    return [
        (TO_A_PERSON, "") if is_refused or choice < 0 else (DECIDED, classes[choice])
        for choice, is_refused in zip(choices.tolist(), refused, strict=True)
    ]


@dataclass(frozen=True)
class OperatingGoal:
    """What is asked of an operating point: a precision, or costs.

    Attributes:
        precision: The share of decided images that shall be right, from 0.5 to below 1.
        costs: What mistakes and a person cost (`read_costs`).
        per_class: Whether the precision shall hold for each class that is decided.
    """

    precision: float | None = None
    costs: CostTable | None = None
    per_class: bool = False

    @classmethod
    def of(
        cls,
        precision: float | None,
        costs: Mapping[Any, float] | Path | str | None = None,
        *,
        per_class: bool = False,
    ) -> "OperatingGoal | None":
        """From what a user gives; None for nothing. Raises SettingsError, DataError."""
        if isinstance(precision, int | float) and 1 < precision <= 100:
            raise SettingsError(
                f"precision is {precision:g}: it is a share; for {precision:g}% give {precision / 100:g}."
            )
        if precision is not None:
            check_value("precision", precision, Precision)
        if precision is not None and costs is not None:
            raise SettingsError("precision and costs both say what is decided: give one of them.")
        if per_class and precision is None:
            raise SettingsError("per_class needs a precision for each class: give that too, as 0.99.")
        if precision is None and costs is None:
            return None
        return cls(precision, None if costs is None else read_costs(costs), per_class)


def choose_point(
    goal: OperatingGoal,
    probabilities: "NDArray[Any]",
    labels: "NDArray[Any]",
    groups: Sequence[Hashable],
    classes: Sequence[str],
    split: str,
    refused: "NDArray[Any] | None" = None,
) -> OperatingPoint:
    """The operating point for a goal, from the probabilities (item x class) of images that the classifier was
    not fitted on, their labels and the groups that they are in. ``split`` says which images these are, those
    that are ``refused`` as of none of the classes go to a person.
    """
    import numpy as np

    best, names = probabilities.argmax(axis=1), np.asarray(groups)
    confidence, correct = probabilities.max(axis=1), best == labels
    is_open = np.ones(len(labels), dtype=bool) if refused is None else ~refused
    if goal.costs is not None:
        point = OperatingPoint(costs=goal.costs, split=split)
    elif goal.per_class:
        assert goal.precision is not None
        thresholds = dict[str, float | None]()
        for number, name in enumerate(classes):
            rows = is_open & (best == number)
            thresholds[name] = find_threshold(confidence[rows], correct[rows], names[rows], goal.precision)
        point = OperatingPoint(goal.precision, by_class=thresholds, split=split)
    else:
        assert goal.precision is not None
        found = find_threshold(confidence[is_open], correct[is_open], names[is_open], goal.precision)
        point = OperatingPoint(goal.precision, found, split=split)
    measured = measure_point(point, probabilities, labels, groups, classes, refused)
    return replace(point, measured=measured)


def find_threshold(
    confidence: "NDArray[Any]", correct: "NDArray[Any]", groups: "NDArray[Any]", precision: float
) -> float | None:
    """The least threshold of the confidence that is shown to have a precision; None if none is.

    The thresholds that decide 4, 5, ... 20 twentieths of the images are tested one after the other, up to the
    first whose precision may be lower: whose bound by Clopper and Pearson, at `LEVEL`, is. Where they start
    does not depend on which images are right (`_find_start`). Since tests stop there, the chance that the
    chosen one has a lower precision is at most 1 - `LEVEL`, although it is chosen and tested on the same
    images, if images with a higher confidence are right at least as often.

    Source: fixed sequences of Angelopoulos et al., Learn then Test, Annals of Applied Statistics 19 (2025).
    """
    import numpy as np

    order = np.argsort(-confidence, kind="stable")
    ranked, right, names = confidence[order], np.asarray(correct, dtype=float)[order], groups[order]
    parts = [math.ceil(part * len(ranked) / STEPS) for part in range(FIRST, STEPS + 1) if len(ranked)]
    counts = [int((ranked >= ranked[part - 1]).sum()) for part in parts]  # with all that have the same
    threshold = None
    for count in counts[_find_start(counts, names, precision) :]:
        if exact_share_bounds(right[:count], names[:count])[0] < precision:
            break
        threshold = float(ranked[count - 1])
    return threshold


def _find_start(counts: Sequence[int], names: "NDArray[Any]", precision: float) -> int:
    """The first of some counts of the surest images that shows a precision with `FORGIVEN` groups that are
    wrong, if it is at most half of all; or with one less, and so on; without a wrong one it may be all. If
    there is none, the number of counts.
    """
    import numpy as np

    for forgiven in range(FORGIVEN, -1, -1):
        for at, count in enumerate(counts):
            if forgiven and 2 * count > len(names):
                break
            wrong = [*dict.fromkeys(names[:count][::-1].tolist())][:forgiven]  # the least sure of these
            right = ~np.isin(names[:count], wrong)
            if exact_share_bounds(right, names[:count])[0] >= precision:
                return at
    return len(counts)


def measure_point(
    point: OperatingPoint,
    probabilities: "NDArray[Any]",
    labels: "NDArray[Any]",
    groups: Sequence[Hashable],
    classes: Sequence[str],
    refused: "NDArray[Any] | None" = None,
) -> Decided:
    """What an operating point decides of labeled images; those that are ``refused`` as of none of the classes
    go to a person. Arguments as of `choose_point`.
    """
    import numpy as np

    choices = point.decide(probabilities, classes, refused)
    is_decided, right, names = choices >= 0, choices == labels, np.asarray(groups)
    low, high = bounds_of(right[is_decided], names[is_decided])
    per_class = {}
    for number, name in enumerate(classes):
        rows = choices == number
        if rows.any():
            count = int(rows.sum()), int(right[rows].sum())
            per_class[name] = (*count, *bounds_of(right[rows], names[rows]))
    facts: dict[str, Any] = {}
    if point.costs is not None:
        costs, asked = point.costs.matrix(classes), point.costs.of_person(classes)
        of_person, of_best = asked[labels], costs[labels, probabilities.argmax(axis=1)]
        spent = np.where(is_decided, costs[labels, np.maximum(choices, 0)], of_person)
        known = np.isfinite(spent)  # without a cost of a person, those that are decided
        if known.any():
            facts = {
                "cost": float(spent[known].mean()),
                "cost_interval": mean_interval(spent[known], names[known]),
                "cost_of_best": float(of_best[known].mean()),
                "cost_of_person": float(of_person.mean()) if np.isfinite(of_person).all() else None,
            }
    return Decided(
        images=len(labels),
        groups=len(np.unique(names)),
        decided=int(is_decided.sum()),
        right=int(right[is_decided].sum()),
        low=low,
        high=high,
        interval=group_share_interval(is_decided, names),
        per_class=per_class,
        **facts,
    )


def bounds_of(correct: "NDArray[Any]", groups: "NDArray[Any]") -> tuple[float, float]:
    """`exact_share_bounds`, from 0 to 1 of no items."""
    return exact_share_bounds(correct, groups) if len(correct) else (0.0, 1.0)
