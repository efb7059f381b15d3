"""The numbers that sentences take from the rows of runs:

<!-- study: HM dear+ - HM tac; large -->+7.2 ± 10.2<!-- end -->

stands for the mean over the large tasks of the difference of HM, with half its interval. A term is a measure
and a method; options follow, each after a semicolon:

- of which runs: large, unseen, readings (the three tasks of recipes/world/readings.yaml), 15 classes (a part
  of a large task), task NAME, seed 1, 16 shots (few-shot learning), photographs;
- how it is written: unsigned, mean (without the interval), or whole (rounded to a whole number).

"since 2026-11-29; large" lists the methods whose rows are all of versions since that day.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchmarks.study.runs import (
    NoRuns,
    Runs,
    complete,
    difference,
    is_variant,
    mean,
    read,
    read_photographs,
    written_difference,
)
from benchmarks.study.tables import READINGS, runs_by_classes
from benchmarks.study.versions import version_of
from dear.world.names import downstream_names

MEASURES = {
    "base": "base",
    "novel": "novel",
    "HM": "hm",
    "joint base": "joint_base",
    "joint novel": "joint_novel",
    "joint HM": "joint",
    "class feature base": "base_alone",
    "class feature novel": "novel_alone",
    "accuracy": "accuracy",
}
TERM = re.compile(rf"({'|'.join(sorted(MEASURES, key=len, reverse=True))}) (\S.*)")
TASKS: dict[str, Callable[[], Sequence[str]]] = {
    "large": lambda: downstream_names(size="large"),
    "unseen": lambda: downstream_names("unseen"),
    "readings": lambda: READINGS,
    "photographs": lambda: ["caltech101"],
}
LOOKS = ("unsigned", "mean", "whole")


@dataclass
class Selection:
    """Which runs a number is of."""

    tasks: Sequence[str]
    seeds: Sequence[int] = ()
    shots: int | None = None
    classes: int | None = None
    photographs: bool = False

    def runs(self, method: str) -> Runs:
        """Those of a method. Raises NoRuns if there are none on all tasks."""
        if self.classes:
            found = runs_by_classes().get((self.classes, method, False))
            if found is None:
                raise NoRuns(method)
            return found
        if self.shots is not None:
            runs = read_photographs() if self.photographs else read("few_shot")
            runs = runs[runs.shots == (0 if method == "zero-shot" else self.shots)]
        else:
            runs = read("variants" if is_variant(method) else "base_to_novel")
        runs = complete(runs[runs.method == method], self.tasks, self.seeds)
        if runs.empty:
            raise NoRuns(method)
        return runs


def value(text: str) -> str:
    """A number as it stands in a sentence.

    Raises ValueError for what is no such number, NoRuns if there are no rows for it.
    """
    expression, *options = (part.strip() for part in text.split(";"))
    selection, looks = Selection(downstream_names()), set[str]()
    for option in options:
        if option in LOOKS:
            looks.add(option)
        elif option in TASKS:
            selection.tasks, selection.photographs = TASKS[option](), option == "photographs"
        elif found := re.fullmatch(r"(\d+) (classes|shots)", option):
            setattr(selection, found[2], int(found[1]))
        elif found := re.fullmatch(r"seed (\d+)", option):
            selection.seeds = [int(found[1])]
        elif found := re.fullmatch(r"task ([\w-]+)", option):
            selection.tasks = [found[1]]
        else:
            raise ValueError(f"{text!r}: there is no option {option!r}")
    if since := re.fullmatch(r"since (\d{4}-\d\d-\d\d)", expression):
        return _methods_since(since[1], selection)
    terms = [TERM.fullmatch(term) for term in expression.split(" - ")]
    if None in terms or len(terms) > 2:
        raise ValueError(f"{text!r}: {expression!r} is not a measure and a method, or two of these")
    (measure, first), *rest = [(MEASURES[term[1]], selection.runs(term[2])) for term in terms if term]
    decimals = 0 if "whole" in looks else 1
    if not rest:
        return f"{mean(first, measure):.{decimals}f}"
    ((of_second, second),) = rest
    points, half = difference(first, second, measure, of_second)
    found = abs(points) if "unsigned" in looks else points, None if "mean" in looks else half
    return written_difference(found, "" if "unsigned" in looks else "+", decimals)


def _methods_since(day: str, selection: Selection) -> str:
    """The methods on the selected tasks, without variants, whose rows are all of versions since a day."""
    runs = read("base_to_novel")
    runs = complete(runs[~runs.method.map(is_variant)], selection.tasks)
    names = [f"`{method}`" for method, of in runs.groupby("method") if day <= version_of(of) < "unknown"]
    if not names:
        raise NoRuns(day)
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last
