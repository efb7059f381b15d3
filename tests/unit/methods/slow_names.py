"""The cost of a name by loops: `dear.methods.names.measure_names` from what each name takes."""

from collections.abc import Sequence

from dear.methods.names import LEVELS, NAME_COST

Taken = tuple[Sequence[float], int]
"""By how much a name is above the best of others, for images that it would take, and how many there are."""


def least_threshold(names: Sequence[Taken], share: float) -> float:
    """The least of 0 and the margins that at most a share of the images are above."""
    margins, pairs = [margin for of_name, _ in names for margin in of_name], sum(pairs for _, pairs in names)
    few = (
        value
        for value in sorted({0.0, *margins})
        if sum(margin > value for margin in margins) <= int(share * pairs)
    )
    return next(few)


def slow_cost(names: Sequence[Taken]) -> tuple[float, float]:
    """The threshold, and the share that each name takes by the first one of the others, on average."""
    threshold, told = 0.0, list[float]()
    for level in range(LEVELS, -1, -1):
        share, lost = NAME_COST * level / LEVELS, 0
        for at, (margins, _) in enumerate(names):
            others = [name for number, name in enumerate(names) if number != at]
            lost += sum(margin > least_threshold(others, share) for margin in margins)
        threshold = least_threshold(names, share)
        told.append(lost / sum(pairs for _, pairs in names))
        if told[-1] <= NAME_COST:
            break
    return threshold, told[0]
