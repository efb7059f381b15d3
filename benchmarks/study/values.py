"""The numbers that sentences take from the rows of runs:

<!-- study: HM dear+ - HM tac; large -->+7.2 ± 10.2<!-- end -->

stands for the mean over the large tasks of the difference of HM, with half its interval. A term is a measure
and a method; options follow, each after a semicolon:

- of which runs: large, unseen, readings (the tasks of recipes/world/readings.yaml), 15 classes (parts of
  a large task; with equal steps, as many steps as on that task), task NAME, seed 1, 16 shots (few-shot
  learning), photographs, roles (of `dear+` with "discovered", "shuffled" or "random" ones);
- how it is written: plain (without a plus sign), mean (without the interval), whole (a whole number).

"lowest MEASURE of variants of dear" is over its variants on the small tasks, and "highest ...";
"mean loss of the choice" is the accuracy of the better of `dear+` and `linear-probe` minus that of the method
that `dear fit` chose on photographs, averaged over single runs, and "largest ..." the largest of these;
"since 2026-11-29; large" lists the methods whose rows are all of versions since that day;
"above dear in HM" those whose interval of the difference to DeAR is above 0, "below dear in HM" below, and
"near dear in HM" those whose interval includes 0;
"HM reached by shuffled roles" is how many of the tables have a mean that is not below that of the discovered
roles, and "HM chance of shuffled roles" the p-value of this.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean

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
from benchmarks.study.tables import count_reached, role_runs, runs_by_classes
from benchmarks.study.variants import READINGS, variant_runs
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
OVER_VARIANTS = re.compile(rf"(lowest|highest) ({'|'.join(MEASURES)}) of variants of (\S+)")
REACHED = re.compile(rf"({'|'.join(MEASURES)}) (reached by|chance of) (shuffled|random) roles")
COMPARED = re.compile(rf"(above|below|near) (\S+) in ({'|'.join(MEASURES)})")
TERM = re.compile(rf"({'|'.join(sorted(MEASURES, key=len, reverse=True))}) (\S.*)")
TASKS: dict[str, Callable[[], Sequence[str]]] = {
    "large": lambda: downstream_names(size="large"),
    "unseen": lambda: downstream_names("unseen"),
    "readings": lambda: READINGS,
    "photographs": lambda: ["caltech101"],
}
LOOKS = ("plain", "mean", "whole")


@dataclass
class Selection:
    """Which runs a number is of."""

    tasks: Sequence[str]
    seeds: Sequence[int] = ()
    shots: int | None = None
    classes: int | None = None
    equal_steps: bool = False
    photographs: bool = False
    roles: bool = False

    def runs(self, method: str) -> Runs:
        """Those of a method. Raises NoRuns if there are none on all tasks."""
        if self.classes:
            found = runs_by_classes().get((self.classes, method, self.equal_steps))
            if found is None:
                raise NoRuns(method)
            return found
        if self.roles:
            runs = role_runs()
        elif self.shots is not None:
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

    Raises ValueError for a text that none of these forms fits, NoRuns if there are no rows for it.
    """
    expression, *options = (part.strip() for part in text.split(";"))
    selection, looks = Selection(downstream_names()), set[str]()
    for option in options:
        if option in LOOKS:
            looks.add(option)
        elif option in TASKS:
            selection.tasks, selection.photographs = TASKS[option](), option == "photographs"
        elif option in ("roles", "equal steps"):
            setattr(selection, option.replace(" ", "_"), True)
        elif found := re.fullmatch(r"(\d+) (classes|shots)", option):
            setattr(selection, found[2], int(found[1]))
        elif found := re.fullmatch(r"seed (\d+)", option):
            selection.seeds = [int(found[1])]
        elif found := re.fullmatch(r"task ([\w-]+)", option):
            selection.tasks = [found[1]]
        else:
            raise ValueError(f"{text!r}: there is no option {option!r}")
    if since := re.fullmatch(r"since (\d{4}-\d\d-\d\d)", expression):
        return _list(_methods_since(since[1], selection))
    if over := OVER_VARIANTS.fullmatch(expression):
        extreme, of_method = {"lowest": min, "highest": max}[over[1]], variant_runs(over[3], selection.tasks)
        means = [mean(runs, MEASURES[over[2]]) for runs, _ in of_method.values()]
        if not means:
            raise NoRuns(over[3])
        return f"{extreme(means):.1f}"
    if loss := re.fullmatch(r"(mean|largest) loss of the choice", expression):
        losses = _losses_of_choice()
        return f"{fmean(losses) if loss[1] == 'mean' else max(losses):.1f}"
    if compared := COMPARED.fullmatch(expression):
        return _list(_methods_beside(compared[1], compared[2], MEASURES[compared[3]], selection))
    if reached := REACHED.fullmatch(expression):
        count, of = count_reached(reached[3], MEASURES[reached[1]])
        return str(count) if reached[2] == "reached by" else f"{count + 1}/{of + 1}"
    terms = [TERM.fullmatch(term) for term in expression.split(" - ")]
    if None in terms or len(terms) > 2:
        raise ValueError(f"{text!r}: {expression!r} is not a measure and a method, or two of these")
    (measure, first), *rest = [(MEASURES[term[1]], selection.runs(term[2])) for term in terms if term]
    decimals = 0 if "whole" in looks else 1
    if not rest:
        return f"{mean(first, measure):.{decimals}f}"
    ((of_second, second),) = rest
    points, half = difference(first, second, measure, of_second)
    shown = points, None if "mean" in looks else half
    return written_difference(shown, "-" if "plain" in looks else "+", decimals)


def _losses_of_choice() -> list[float]:
    """The accuracy of the better of two methods minus that of what `dear fit` chose, of each run."""
    runs = read_photographs().pivot_table("accuracy", ["shots", "seed"], "method")
    return [*(runs[["dear+", "linear-probe"]].max(axis=1) - runs["dear fit"]).dropna()]


def _methods_since(day: str, selection: Selection) -> list[str]:
    """The methods on the selected tasks whose rows are all of versions since a day."""
    methods = _all_methods(selection)
    return [method for method, runs in methods.items() if day <= version_of(runs) < "unknown"]


def _methods_beside(side: str, method: str, measure: str, selection: Selection) -> list[str]:
    """The methods on the selected tasks that are above another, below it, or near, the highest first."""
    runs, found = _all_methods(selection), dict[str, float]()
    for name, of in runs.items():
        if name != method:
            points, half = difference(of, runs[method], measure)
            is_near = half is not None and abs(points) <= half
            if side == ("near" if is_near else "above" if points > 0 else "below"):
                found[name] = points
    return sorted(found, key=lambda name: -found[name])


def _all_methods(selection: Selection) -> dict[str, Runs]:
    """The runs of each method on the selected tasks, without variants."""
    runs = read("base_to_novel")
    runs = complete(runs[~runs.method.map(is_variant)], selection.tasks)
    return {str(method): of for method, of in runs.groupby("method")}


def _list(methods: Sequence[str]) -> str:
    """Methods as a sentence lists them."""
    *first, last = [f"`{method}`" for method in methods] or ["no method"]
    return f"{', '.join(first)} and {last}" if first else last
