"""What a classifier's mistakes cost, and what a person costs who looks instead. Light to import."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from dear.data.sources.class_names import plain_name
from dear.errors import DataError, UnknownNameError
from dear.reading.files import expanded
from dear.reading.plain import read_csv
from dear.reading.typed import Range
from dear.text import FEW, list_names

if TYPE_CHECKING:
    from numpy.typing import NDArray

ANY = "*"
"""Every class that no other row names."""
ASK = "to a person"
"""Instead of a prediction: an image that is not decided."""
COLUMNS = ("class", "predicted", "cost")
Cost = Annotated[float, Range(0, 1e9)]


@dataclass(frozen=True)
class CostTable:
    """Costs, each of an image of a class that is taken for another one, or that goes to a person.

    Attributes:
        rows: The class, what it is predicted to be, and the cost. `ANY` stands for every class, `ASK` for a
            person. A row that names more counts before one that names less; a mistake that none names
            costs 1, and without a row for a person no image goes to one.
    """

    rows: tuple[tuple[str, str, Cost], ...]

    def check(self, classes: Sequence[str]) -> None:
        """Raise UnknownNameError for a row with a name that is none of the classes, and DataError if a person
        has a cost for some classes alone.
        """
        known = {plain_name(name) for name in classes}
        for name in (name for row in self.rows for name in row[:2]):
            if name not in (ANY, ASK) and plain_name(name) not in known:
                raise UnknownNameError("class", name, classes)
        missing = [
            name for name, cost in zip(classes, self.of_person(classes), strict=True) if cost == math.inf
        ]
        if 0 < len(missing) < len(classes):
            raise DataError(
                "the costs say for some classes what a person costs, but not for "
                f'{list_names(missing, FEW)}: give a row "{ANY},{ASK},COST".'
            )

    def matrix(self, classes: Sequence[str]) -> "NDArray[Any]":
        """The cost of each class (row) that is predicted to be each (column)."""
        import numpy as np

        costs = 1.0 - np.eye(len(classes))
        for name, predicted, cost in sorted(self.rows, key=_count_names):
            if predicted != ASK:
                costs[np.ix_(_find(name, classes), _find(predicted, classes))] = cost
        np.fill_diagonal(costs, 0)
        return costs

    def of_person(self, classes: Sequence[str]) -> "NDArray[Any]":
        """The cost of a person who looks at an image of each class; infinite without one."""
        import numpy as np

        costs = np.full(len(classes), np.inf)
        for name, predicted, cost in sorted(self.rows, key=_count_names):
            if predicted == ASK:
                costs[_find(name, classes)] = cost
        return costs

    def decide(self, probabilities: "NDArray[Any]", classes: Sequence[str]) -> "NDArray[Any]":
        """The number of the class with the least expected cost for each image, item x class; -1 where a
        person costs less.
        """
        return decide_by_costs(probabilities, self.matrix(classes), self.of_person(classes))


def decide_by_costs(
    probabilities: "NDArray[Any]", costs: "NDArray[Any]", of_person: "NDArray[Any]"
) -> "NDArray[Any]":
    """As `CostTable.decide`, by its `matrix` and what it has `of_person`."""
    import numpy as np

    expected = probabilities @ costs
    if not np.isfinite(of_person).all():
        return np.asarray(expected.argmin(axis=1))
    return np.where(probabilities @ of_person < expected.min(axis=1), -1, expected.argmin(axis=1))


def read_costs(costs: Mapping[Any, float] | Path | str) -> CostTable:
    """A table of costs: of a CSV file with the columns class, predicted and cost; of words such as
    "defect=50,to a person=2", of which each class is a mistake about its images; or of a mapping of classes,
    or of pairs of a class and a prediction, to costs. Raises DataError that names the row.
    """
    if isinstance(costs, Mapping):
        return CostTable(tuple(_row(*_pair(key), cost, f"costs: {key}") for key, cost in costs.items()))
    if isinstance(costs, Path) or "=" not in costs:
        path = expanded(costs)
        (_, head), *lines = [*read_csv(path)] or [(0, [])]
        titles = [*map(str.strip, head)]
        if missing := [name for name in COLUMNS if name not in titles]:
            raise DataError(f"{path} has no column {missing[0]}: it needs {', '.join(COLUMNS)}.")
        rows = [
            (line, dict(zip_longest(titles, map(str.strip, cells), fillvalue=""))) for line, cells in lines
        ]
        return CostTable(
            tuple(
                _row(row["class"], row["predicted"], row["cost"], f"{path}, line {line}")
                for line, row in rows
            )
        )
    pairs = [word.rpartition("=") for word in costs.split(",") if word.strip()]
    return CostTable(
        tuple(_row(*_pair(name.strip()), cost.strip(), f"costs: {name}") for name, _, cost in pairs)
    )


def _pair(key: Any) -> tuple[str, str]:
    """The class and what it is predicted to be, of a key of costs."""
    if isinstance(key, tuple) and len(key) == 2:
        return str(key[0]), str(key[1])
    return (ANY, ASK) if key == ASK else (str(key), ANY)


def _row(name: str, predicted: str, cost: Any, where: str) -> tuple[str, str, float]:
    """A row of a table of costs. Raises DataError."""
    try:
        number = float(cost)
    except ValueError:
        number = -1.0
    if not 0 <= number <= 1e9:
        raise DataError(f"{where}: the cost is {cost!r}, it must be a number from 0 to 1,000,000,000.")
    if not name or not predicted:
        raise DataError(f"{where}: a class is empty; {ANY} stands for every class.")
    return name, predicted, number


def _find(name: str, classes: Sequence[str]) -> list[int]:
    """The numbers of the classes that a row names."""
    if name == ANY:
        return [*range(len(classes))]
    return [number for number, known in enumerate(classes) if plain_name(known) == plain_name(name)]


def _count_names(row: tuple[str, str, float]) -> tuple[int, int]:
    """How much a row names: the class before the prediction."""
    return (row[0] != ANY) + (row[1] not in (ANY, ASK)), row[0] != ANY
