"""What an operating point promises and what it decides of labeled images, in sentences. Light to import."""

import math

from dear.adapters.costs import ANY, ASK, CostTable
from dear.adapters.operating import Decided, OperatingPoint
from dear.stats import GROUPED, LEVEL
from dear.text import FEW, list_names, plural, printable

IMAGES = {"cross-validation": "training images left out in turn"}
"""What the images are called on which a point was chosen, by their split."""
MOST_COSTS = 20


def describe_point(point: OperatingPoint | None) -> list[str]:
    """What an operating point promises, in lines; none without one."""
    if point is None:
        return []
    measured = point.measured
    if measured is None:
        return ["Nothing is decided: there are no images left out to choose an operating point from."]
    images = IMAGES.get(point.split, f"{point.split} images")
    if point.costs is not None:
        return [describe_costs(point.costs), *_describe_costs(measured, images)]
    percent = f"{100 * (point.precision or 0):.4g}%"
    if not measured.decided:
        needed = math.ceil(math.log(1 - LEVEL) / math.log(point.precision or 0.5))
        noun = "group" if measured.groups < GROUPED * measured.images else "image"
        which = f"{plural(needed, noun)} that are all right"
        if point.by_class is not None:
            return [f"Nothing is decided: no class is shown to be {percent} right, which takes {which}."]
        if measured.groups < needed:
            most = math.floor(1000 * (1 - LEVEL) ** (1 / max(1, measured.groups))) / 10
            there = f"and there are {measured.groups:,}, which can show at most {most:.4g}%"
            return [f"Nothing is decided: to show that {percent} are right takes {which}, {there}."]
        surest = f"the surest of the {plural(measured.images, 'image')}"
        return [f"Nothing is decided: too few of {surest} are right to show that {percent} are."]
    share, low, high = measured.decided / measured.images, *measured.interval
    never = [name for name, threshold in (point.by_class or {}).items() if threshold is None]
    if point.by_class is not None:
        at = f"accept the probability of each class ({len(point.by_class) - len(never)} have one)"
    else:
        at = f"accept a probability of {_round_up(point.threshold or 0.0)} or more"
    decided = f"{share:.1%} of {images} ({LEVEL:.0%}: {low:.1%} to {high:.1%}) are decided"
    lines = [f"To be {percent} right, {at}: {decided}, {1 - share:.1%} go to a person."]
    lines.append(f"{_describe_right(measured)} Images that look like none of the classes go to a person too.")
    if never:
        names = printable(list_names(never, FEW))
        lines.append(f"Never decided, as {percent} is not shown for them: {names}.")
    return lines


def _round_up(threshold: float) -> str:
    """A threshold in a few digits, not below itself unless it is almost 1."""
    digits = 4 if threshold < 0.999 else 6
    rounded = math.ceil(threshold * 10**digits - 1e-9) / 10**digits
    return f"{rounded if rounded < 1 else threshold:.{digits + 2}g}"


def _describe_right(measured: Decided) -> str:
    """How many decided images are right, in a sentence."""
    share = measured.right / measured.decided
    by_groups = ", by groups" if measured.groups < GROUPED * measured.images else ""
    return (
        f"{measured.right:,} of {measured.decided:,} decided are right, {share:.2%} "
        f"(at least {measured.low:.2%}, with {LEVEL:.0%} confidence{by_groups})."
    )


def describe_costs(costs: CostTable) -> str:
    """The costs by which images are decided, in a sentence."""
    parts = list[str]()
    for name, predicted, cost in costs.rows:
        what = "" if name == ANY else f"{name} "
        if predicted == ASK:
            what += ASK
        elif name == ANY:
            what = "any other mistake" if predicted == ANY else f"anything else taken for {predicted}"
        else:
            what += "taken for another class" if predicted == ANY else f"taken for {predicted}"
        parts.append(f"{what} {cost:g}")
    if not any(row[:2] == (ANY, ANY) for row in costs.rows):
        parts.append("any other mistake 1")
    return f"Its costs: {printable(list_names(parts, MOST_COSTS))}."


def _describe_costs(measured: Decided, images: str) -> list[str]:
    """What deciding by costs costs, in lines."""
    low, high = measured.cost_interval
    compared = f"{measured.cost_of_best:.4g} if each had its most probable class"
    if measured.cost_of_person is not None:
        compared += f", {measured.cost_of_person:.4g} if each went to a person"
    share = measured.decided / measured.images
    is_of_all = measured.cost_of_person is not None or measured.decided == measured.images
    image = "an image" if is_of_all else "a decided image"
    lines = [
        f"By its costs, {image} costs {measured.cost:.4g} on average "
        f"({LEVEL:.0%}: {low:.4g} to {high:.4g}); {compared}.",
        f"{share:.1%} of {images} are decided, {1 - share:.1%} go to a person.",
    ]
    cheapest = min(measured.cost_of_best, measured.cost_of_person or measured.cost_of_best)
    if is_of_all and measured.cost > cheapest:
        lines.append(
            "That is no cheaper than treating all images alike: check the costs, or label more images."
        )
    return [*lines, _describe_right(measured)] if measured.decided else lines


def describe_decided(point: OperatingPoint | None, decided: Decided | None) -> list[str]:
    """What an operating point decides of images on which it was not chosen, and whether its promise holds."""
    if point is None or decided is None:
        return []
    if not decided.decided and decided.cost_of_person is None:
        return ["At the bundle's operating point nothing is decided: every image goes to a person."]
    if point.costs is not None:
        first, *others = _describe_costs(decided, "these images")
        return [f"At the bundle's operating point: {first[0].lower()}{first[1:]}", *others]
    share, percent = decided.decided / decided.images, f"{100 * (point.precision or 0):.4g}%"
    line = (
        f"At the bundle's operating point {share:.1%} of these images are decided. {_describe_right(decided)}"
    )
    if point.by_class is not None:
        return [line, _describe_classes(point.precision or 0, decided)]
    if decided.high < (point.precision or 0):
        return [f"The promise of {percent} does not hold here: {line[0].lower()}{line[1:]}"]
    is_shown = decided.low >= (point.precision or 0)
    how = "which this shows" if is_shown else "which these images neither show nor refute"
    return [f"{line} Promised: {percent}, {how}."]


def _describe_classes(precision: float, decided: Decided) -> str:
    """For which classes a promise for each of them holds, in a sentence."""
    shown, refuted, open_ = list[str](), list[str](), list[str]()
    for name, (count, right, low, high) in decided.per_class.items():
        if high < precision:
            refuted.append(f"{name} ({right:,} of {count:,} right)")
        else:
            (shown if low >= precision else open_).append(name)
    parts = [
        f"{what} {printable(list_names(names, FEW))}"
        for what, names in (
            ("does not hold here for", refuted),
            ("is shown for", shown),
            ("is neither shown nor refuted for", open_),
        )
        if names
    ]
    return f"Promised: {100 * precision:.4g}% for each class. This {'; it '.join(parts)}."
