"""Write measured tables of recipes/study/TABLES.md from run records:
`python -m tools.document_study --methods FOLDER --variants FOLDER FOLDER ...`.

Run it in the root of the repository, after `recipes/methods/all.yaml` and `recipes/study`; the tables of the
large tasks are written from `--large FOLDER`, the folder of `recipes/study/large.yaml`. The tables with joint
scores are those of tools.measurements; the rest of the page is written by hand.
"""

import argparse
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean, median
from typing import TYPE_CHECKING

from dear.data.world.names import Size, downstream_names
from dear.data.world.tasks import factor_alone
from dear.evaluation.records import read_record
from dear.evaluation.schema import harmonic_mean
from dear.methods.registry import DEFAULT_METHOD, FROZEN
from dear.report.intervals import paired
from dear.report.records import Record, accuracy, data_set, grouped, method_label, readable
from dear.training.settings import TrainSettings
from tools.document import with_table
from tools.facts import OF_ONE_FACTOR, Fact, check_facts

if TYPE_CHECKING:
    from tools.headroom import Headroom

TABLES = Path("recipes/study/TABLES.md")
NUMBERS = {2: "two", 4: "four", 8: "eight", 12: "twelve"}

Halves = tuple[float, float]


def by_task(records: Iterable[Record], read: str = "accuracy") -> dict[str, Halves]:
    """Task -> base and novel in percent, means over seeds."""

    def mean(runs: Sequence[Record], half: str) -> float:
        return 100 * fmean(accuracy(run, half, read=read) for run in runs)

    tasks = grouped(readable(records), data_set)
    return {task: (mean(runs, "base"), mean(runs, "novel")) for task, runs in tasks.items()}


def mean_of(halves: Mapping[str, Halves], tasks: Sequence[str]) -> tuple[float, float, float]:
    """Base, novel and their HM, averaged over some tasks."""
    base, novel = (fmean(halves[task][half] for task in tasks) for half in (0, 1))
    return base, novel, harmonic_mean(base, novel)


def gap(one: Mapping[str, Halves], other: Mapping[str, Halves], tasks: Sequence[str]) -> str:
    """Mean difference of the tasks' HMs, with half the width of its 95% t interval."""
    difference, width = paired(*([harmonic_mean(*of[task]) for task in tasks] for of in (one, other)))
    return f"{difference:+.2f}" + ("" if width is None else f" ± {width:.2f}")


def steps_of(run: Record) -> int | None:
    """The training steps of a run, from its settings, its images and its epochs; 0 for a method that takes no
    steps. None if the record does not tell: a method that trains on unlabelled images too has a teacher, or
    there are no settings.
    """
    epochs, pick = run["train"]["epochs"], run.get("fewshot")
    if not epochs:
        return 0
    settings = run["settings"].get("train")
    if run.get("transductive") or run.get("teacher") or not pick or not settings:
        return None
    return TrainSettings(**settings).steps(len(pick["indices"])) * len(epochs)


def methods_table(records: Sequence[Record], size: Size = "small") -> str:
    """One row per method that was run on all tasks of a size, by HM: averages over all tasks, HM on the
    calibrated and on the unseen ones, difference to zero-shot CLIP, cost.
    """
    everything = downstream_names(size=size)
    parts = downstream_names("calibrated", size), downstream_names("unseen", size)
    runs = {
        method: own
        for method, own in grouped(readable(records), method_label).items()
        if {data_set(run) for run in own} >= {*everything}
    }
    halves = {method: by_task(own) for method, own in runs.items()}
    lines = [
        f"| method | base | novel | HM | HM, {_number(parts[0])} calibrated | HM, {_number(parts[1])} unseen "
        "| HM minus zero-shot's | seeds | trained parameters | steps a run | seconds a run |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | --- | ---: | ---: | ---: |",
    ]
    for method in sorted(runs, key=lambda method: mean_of(halves[method], everything)[2]):
        base, novel, hm = mean_of(halves[method], everything)
        apart = " | ".join(f"{mean_of(halves[method], part)[2]:.2f}" for part in parts)
        versus = "" if method == FROZEN else gap(halves[method], halves[FROZEN], everything)
        seeds = ", ".join(map(str, sorted({run["seed"] for run in runs[method]})))
        steps = [steps_of(run) for run in runs[method]]
        usual_steps = "" if None in steps else f"{median(steps):,.0f}"  # type: ignore[type-var]
        parameters = max(run.get("trainable_parameters") or 0 for run in runs[method])
        seconds = median(run["seconds"]["train"] + run["seconds"]["test"] for run in runs[method])
        lines.append(
            f"| {method} | {base:.2f} | {novel:.2f} | {hm:.2f} | {apart} | {versus} | {seeds} "
            f"| {parameters:,} | {usual_steps} | {seconds:.0f} |"
        )
    return "\n".join(lines)


def variants_table(default: Sequence[Record], records: Sequence[Record]) -> str:
    """One row per variant of DeAR: averages over all tasks, and the difference of its HM to the default's, on
    the same seeds, over all tasks and over the unseen ones.
    """
    everything, unseen = downstream_names(), downstream_names("unseen")
    lines = [
        "| variant | base | novel | HM | HM minus the default's | on the four unseen |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for label, runs in grouped(readable(records), lambda run: str(run.get("variant") or "")).items():
        if not label or not {data_set(run) for run in runs} >= {*everything}:
            continue
        seeds = {run["seed"] for run in runs}
        own, usual = by_task(runs), by_task(run for run in default if run["seed"] in seeds)
        row = " | ".join(f"{value:.2f}" for value in mean_of(own, everything))
        lines.append(f"| {label} | {row} | {gap(own, usual, everything)} | {gap(own, usual, unseen)} |")
    first = by_task(_seed_1(default))
    alone = by_task(_seed_1(default), "decoupled")
    versus = f"{gap(alone, first, everything)} | {gap(alone, first, unseen)}"
    for label, own, shown in (("default", first, "|"), ("default, class feature alone", alone, versus)):
        row = " | ".join(f"{value:.2f}" for value in mean_of(own, everything))
        lines.append(f"| {label} | {row} | {shown} |")
    return "\n".join(lines)


def facts_table(records: Sequence[Record], rooms: Mapping[str, "Headroom"], size: Size = "small") -> str:
    """The facts on the calibrated, the unseen and all tasks of a size, beside what was published."""
    tasks = [downstream_names(which, size) for which in ("calibrated", "unseen", "all")]
    found = [_facts(records, rooms, names) for names in tasks]
    calibrated_number, unseen_number, all_number = map(_number, tasks)
    lines = [
        f"| | fact | {calibrated_number} calibrated | {unseen_number} unseen | all {all_number} | published "
        "| holds on all |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for calibrated, unseen, every in zip(*found, strict=True):
        if size == "large" and every.number == OF_ONE_FACTOR:  # no large task has classes of one factor
            continue
        verdict = {True: "yes", False: "**no**", None: "not run"}[every.holds]
        lines.append(
            f"| {every.number} | {every.statement} | {calibrated.measured} | {unseen.measured} "
            f"| {every.measured} | {every.published} | {verdict} |"
        )
    return "\n".join(lines)


def _number(tasks: Sequence[str]) -> str:
    return NUMBERS.get(len(tasks), str(len(tasks)))


def _facts(records: Sequence[Record], rooms: Mapping[str, "Headroom"], tasks: Sequence[str]) -> list[Fact]:
    of_tasks = [record for record in records if data_set(record) in tasks]
    complete = grouped(of_tasks, lambda run: str(run["method"]))
    usable = [
        run for runs in complete.values() if {data_set(run) for run in runs} == {*tasks} for run in runs
    ]
    return check_facts(usable, {name: rooms[name] for name in tasks}, factor_alone(tasks))


def _seed_1(records: Iterable[Record]) -> list[Record]:
    return [record for record in records if record["seed"] == 1]


def _records(folder: Path) -> list[Record]:
    return [read_record(path) for path in sorted(folder.glob("*.json"))]


def main() -> int:
    """Write the tables into the page."""
    from dear.backbone.load import load_clip
    from dear.data.loading import load_dataset
    from tools.headroom import headroom

    parser = argparse.ArgumentParser(description="Write measured tables of recipes/study/TABLES.md.")
    parser.add_argument("--methods", type=Path, required=True, help="folder of recipes/methods/all.yaml")
    parser.add_argument("--variants", type=Path, nargs="+", required=True, help="folders of DeAR's variants")
    parser.add_argument("--large", type=Path, help="folder of recipes/study/large.yaml")
    given = parser.parse_args()
    records = _records(given.methods)
    variants = [record for folder in given.variants for record in _records(folder)]
    default = [
        record for record in records if record["method"] == DEFAULT_METHOD and not record.get("variant")
    ]
    clip = load_clip("tiny")
    rooms = {name: headroom(clip, load_dataset(name)) for name in downstream_names()}
    page = TABLES.read_text(encoding="utf-8")
    page = with_table(page, "facts", facts_table(records, rooms))
    page = with_table(page, "methods", methods_table(records))
    page = with_table(page, "variants", variants_table(default, variants))
    if given.large is not None:
        of_large = _records(given.large)
        rooms = {name: headroom(clip, load_dataset(name)) for name in downstream_names(size="large")}
        page = with_table(page, "large-facts", facts_table(of_large, rooms, "large"))
    TABLES.write_text(page, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
