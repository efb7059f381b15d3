"""The measurements that the study rests on, a row for each run, so that its tables can be made anew from a
checkout without repeating the runs: `python -m tools.measurements FOLDER...` adds the records of runs of
base-to-novel and writes the figure and the table of docs/study.md, the tables of recipes/study/TABLES.md and
that of README; without a folder it writes these alone.

A run that was measured before is replaced. Run it in the root of the repository.
"""

import argparse
import csv
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import astuple, dataclass, fields
from operator import attrgetter
from pathlib import Path
from statistics import fmean, median
from typing import Self, get_args

from dear.data.world.names import Size
from dear.data.world.tasks import downstream_names
from dear.errors import listing
from dear.evaluation.records import read_record
from dear.evaluation.schema import harmonic_mean
from dear.methods.registry import FROZEN, METHODS
from dear.report.intervals import half_width, paired
from dear.report.records import UNLABELLED, Record, accuracy, data_set, method_label
from tools import end_with
from tools.document import with_table
from tools.results_figure import Estimate, Row, results_figure

FILE, FIGURE = Path("docs/measured/base_to_novel.csv"), Path("docs/images/results.svg")
STUDY, TABLES, README = Path("docs/study.md"), Path("recipes/study/TABLES.md"), Path("README.md")
SHORT = (
    "zero-shot",
    "coop",
    "mmrl",
    "dear",
    "maple",
    "clip-lora",
    "promptsrc",
    "clip-adapter",
    "tac",
    "dear+",
)
"""The methods in README's table, where they were measured on all small tasks."""
IN_PART = ("clip-lora",)
"""Methods that were not run on all small tasks, for their time."""


@dataclass(frozen=True, order=True)
class Measurement:
    """A run of base-to-novel on a task; accuracies in percent.

    Attributes:
        data: The task.
        method: The method, with its variant in parentheses.
        steps: Steps of training, 0 for a method that takes none.
        base, novel: Either half among its own classes.
        joint_base, joint_novel: Either half among all classes.
        joint_base_alone, joint_novel_alone: The same by the class feature alone.
        joint_base_switched, joint_novel_switched: The same where novel classes have zero-shot scores.
        parameters: Trained parameters.
        seconds: Of training and tests; other runs may have shared the processor.
        weights, code: The first digits of the hashes of the backbone's weights and of the package's code.
    """

    data: str
    method: str
    seed: int
    steps: int
    base: float
    novel: float
    joint_base: float
    joint_novel: float
    joint_base_alone: float
    joint_novel_alone: float
    joint_base_switched: float
    joint_novel_switched: float
    parameters: int
    seconds: int
    weights: str
    code: str

    @classmethod
    def of(cls, record: Record) -> Self:
        """The measurement in a record. Raises DataError if the record lacks a number."""

        def percent(*part: str, read: str = "accuracy") -> float:
            return round(100 * accuracy(record, *part, read=read), 4)

        joint = {
            f"joint_{half}{suffix}": percent("joint", half, read=read)
            for suffix, read in (
                ("", "accuracy"),
                ("_alone", "decoupled"),
                ("_switched", "zero_shot_for_new"),
            )
            for half in ("base", "novel")
        }
        seconds, training = record["seconds"], record["settings"]["train"]
        epochs = len(record["train"]["epochs"])
        images = len((record["fewshot"] or {"indices": ()})["indices"])
        return cls(
            data=data_set(record),
            method=method_label(record),
            seed=record["seed"],
            steps=epochs * math.ceil(images / training["batch"]),
            base=percent("base"),
            novel=percent("novel"),
            **joint,
            parameters=record["trainable_parameters"],
            seconds=round(seconds["train"] + seconds["test"]),
            weights=record["weights"]["sha256"][:12],
            code=record["environment"]["code"],
        )

    @property
    def run(self) -> tuple[str, str, int]:
        """What tells runs apart."""
        return self.data, self.method, self.seed

    @property
    def hm(self) -> float:
        """HM of the halves, each among its own classes."""
        return harmonic_mean(self.base, self.novel)

    @property
    def joint_hm(self) -> float:
        """HM of the halves, each among all classes."""
        return harmonic_mean(self.joint_base, self.joint_novel)


def read_measurements(path: Path = FILE) -> list[Measurement]:
    """The stored measurements."""
    kinds = {field.name: field.type for field in fields(Measurement)}
    with path.open(encoding="utf-8", newline="") as file:
        rows = [*csv.DictReader(file)]
    return [Measurement(**{name: kinds[name](text) for name, text in row.items()}) for row in rows]  # type: ignore[operator]


def write_measurements(measurements: Iterable[Measurement], path: Path = FILE) -> None:
    """Store measurements, a row each, sorted."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(field.name for field in fields(Measurement))
        writer.writerows(astuple(measurement) for measurement in sorted(measurements))


Value = Callable[[Measurement], float]

BASE: Value = attrgetter("base")
NOVEL: Value = attrgetter("novel")
JOINT_BASE: Value = attrgetter("joint_base")
JOINT_NOVEL: Value = attrgetter("joint_novel")


class Results:
    """Measurements of some tasks, by method and task."""

    def __init__(self, measurements: Iterable[Measurement], tasks: Sequence[str]) -> None:
        """Seeds that a method was not run with on all of the tasks are left out, and so is a method without
        any other.
        """
        self.tasks, tasks_of = tuple(tasks), dict[tuple[str, int], set[str]]()
        measurements = [run for run in measurements if run.data in tasks]
        for run in measurements:
            tasks_of.setdefault((run.method, run.seed), set()).add(run.data)
        self.by_method: dict[str, dict[str, list[Measurement]]] = {}
        for run in measurements:
            if tasks_of[run.method, run.seed] == {*tasks}:
                self.by_method.setdefault(run.method, {}).setdefault(run.data, []).append(run)

    def mean(self, method: str, value: Value, tasks: Sequence[str] | None = None) -> float:
        """The mean over tasks of the mean over seeds."""
        return fmean(self.by_task(method, value, tasks))

    def by_task(self, method: str, value: Value, tasks: Sequence[str] | None = None) -> list[float]:
        """The mean over seeds for each task."""
        runs = self.by_method[method]
        return [fmean(value(run) for run in runs[task]) for task in tasks or self.tasks]

    def hm(self, method: str, base: Value, novel: Value, tasks: Sequence[str] | None = None) -> float:
        """HM of the averages over tasks."""
        return harmonic_mean(self.mean(method, base, tasks), self.mean(method, novel, tasks))

    def joint(self, method: str, tasks: Sequence[str] | None = None) -> float:
        """HM of the averages over tasks, each half among all classes."""
        return self.hm(method, JOINT_BASE, JOINT_NOVEL, tasks)

    def gap(self, method: str, other: str, value: Value) -> str:
        """Mean difference over tasks, with half the width of its 95% t interval, over the seeds that both
        have; "" for a method and itself.
        """
        if method == other:
            return ""
        seeds = [
            {run.seed for runs in self.by_method[name].values() for run in runs} for name in (method, other)
        ]
        shared = [run for name in (method, other) for runs in self.by_method[name].values() for run in runs]
        same = Results([run for run in shared if run.seed in seeds[0] & seeds[1]], self.tasks)
        difference, width = paired(same.by_task(method, value), same.by_task(other, value))
        return f"{difference:+.1f}" + ("" if width is None else f" ± {width:.1f}")

    def seeds(self, method: str) -> str:
        """The seeds that it was run with."""
        return ", ".join(
            map(str, sorted({run.seed for runs in self.by_method[method].values() for run in runs}))
        )


def apart_table(measurements: Sequence[Measurement], tasks: Sequence[str], unseen: Sequence[str]) -> str:
    """One row for each method that was run on all tasks, by HM: each half among its own classes, costs."""
    results = Results(measurements, tasks)
    lines = [
        "| method | seeds | base | novel | HM | HM, unseen tasks | HM minus zero-shot's "
        "| HM, novel by zero-shot | steps | seconds |",
        "| --- | --- |" + " ---: |" * 8,
    ]
    for method in sorted(results.by_method, key=lambda method: results.hm(method, BASE, NOVEL)):
        runs = [run for runs in results.by_method[method].values() for run in runs]
        base = results.mean(method, BASE)
        numbers = [
            f"{base:.1f}",
            f"{results.mean(method, NOVEL):.1f}",
            f"{results.hm(method, BASE, NOVEL):.1f}",
            f"{results.hm(method, BASE, NOVEL, unseen):.1f}",
            results.gap(method, FROZEN, lambda run: run.hm),
            f"{harmonic_mean(base, results.mean(FROZEN, NOVEL)):.1f}",
            f"{median(run.steps for run in runs):,.0f}",
            f"{median(run.seconds for run in runs):,.0f}",
        ]
        lines.append(f"| {method} | {results.seeds(method)} | {' | '.join(numbers)} |")
    return "\n".join(lines)


def joint_table(measurements: Sequence[Measurement], tasks: Sequence[str], unseen: Sequence[str]) -> str:
    """One row for each method that was run on all tasks, by HM: all classes at once, then by other rules."""
    results = Results(measurements, tasks)
    lines = [
        "| method | seeds | joint base | joint novel | joint HM | joint HM, unseen tasks "
        "| joint HM minus zero-shot's | class feature alone | novel by zero-shot |",
        "| --- | --- |" + " ---: |" * 7,
    ]
    for method in sorted(results.by_method, key=results.joint):
        alone = results.hm(method, lambda run: run.joint_base_alone, lambda run: run.joint_novel_alone)
        switched = results.hm(
            method, lambda run: run.joint_base_switched, lambda run: run.joint_novel_switched
        )
        numbers = [
            f"{results.mean(method, JOINT_BASE):.1f}",
            f"{results.mean(method, JOINT_NOVEL):.1f}",
            f"{results.joint(method):.1f}",
            f"{results.joint(method, unseen):.1f}",
            results.gap(method, FROZEN, lambda run: run.joint_hm),
            f"{alone:.1f}",
            f"{switched:.1f}",
        ]
        lines.append(f"| {method} | {results.seeds(method)} | {' | '.join(numbers)} |")
    return "\n".join(lines)


def short_table(measurements: Sequence[Measurement], tasks: Sequence[str]) -> str:
    """README's table: seed 1 of some methods, by joint HM."""
    results = Results([run for run in measurements if run.seed == 1 and run.method in SHORT], tasks)
    rows = []
    for method in results.by_method:
        base, novel = results.mean(method, BASE), results.mean(method, NOVEL)
        joint = results.joint(method)
        hm = harmonic_mean(base, novel)
        rows.append((joint, f"| `{method}` | {base:.1f} | {novel:.1f} | {hm:.1f} | {joint:.1f} |"))
    lines = [
        "| method | base | novel | HM | HM, all classes at once |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    return "\n".join([*lines, *(row for _, row in sorted(rows))])


def part_table(measurements: Iterable[Measurement], method: str) -> str:
    """The methods on those of the small tasks that one of them was run on, with seed 1: by joint HM."""
    runs = [run for run in _unchanged(measurements) if run.seed == 1]
    measured = {run.data for run in runs if run.method == method}
    tasks = [task for task in downstream_names() if task in measured]
    lines = [f"On {listing(tasks, len(tasks))}:", "", "| method | base | novel | HM | joint HM |"]
    lines.append("| --- |" + " ---: |" * 4)
    results = Results(runs, tasks)
    for name in sorted(results.by_method, key=results.joint) if tasks else ():
        base, novel = results.mean(name, BASE), results.mean(name, NOVEL)
        hm = results.hm(name, BASE, NOVEL)
        lines.append(f"| {name} | {base:.1f} | {novel:.1f} | {hm:.1f} | {results.joint(name):.1f} |")
    return "\n".join(lines)


def main_table(measurements: Sequence[Measurement]) -> str:
    """The study's table: each method without its variants, highest joint HM on the small tasks first, with
    its gain over zero-shot CLIP there, and HMs on the large tasks where it was run on all of them.
    """
    small = Results(_unchanged(measurements), downstream_names())
    large = Results(_unchanged(measurements), downstream_names(size="large"))
    lines = [
        "| method | base | novel | HM | joint HM | joint gain | large: HM | large: joint HM |",
        "| --- |" + " ---: |" * 7,
    ]
    for method in sorted(small.by_method, key=small.joint, reverse=True):
        numbers = [
            f"{small.mean(method, BASE):.1f}",
            f"{small.mean(method, NOVEL):.1f}",
            f"{small.hm(method, BASE, NOVEL):.1f}",
            f"{small.joint(method):.1f}",
            small.gap(method, FROZEN, lambda run: run.joint_hm),
            f"{large.hm(method, BASE, NOVEL):.1f}" if method in large.by_method else "",
            f"{large.joint(method):.1f}" if method in large.by_method else "",
        ]
        lines.append(f"| {_marked(f'`{method}`')} | {' | '.join(numbers)} |")
    return "\n".join(lines)


def figure(measurements: Sequence[Measurement]) -> str:
    """The study's figure as SVG: base, novel and joint HM of each method without its variants on the small
    tasks, the highest joint HM first. Intervals are of the mean over tasks.
    """
    results = Results(_unchanged(measurements), downstream_names())

    def estimate(method: str, mean: float, value: Value) -> Estimate:
        return Estimate(mean, half_width(results.by_task(method, value)))

    rows = [
        Row(
            _marked(method),
            {
                "base": estimate(method, results.mean(method, BASE), BASE),
                "novel": estimate(method, results.mean(method, NOVEL), NOVEL),
                "joint HM": estimate(method, results.joint(method), lambda run: run.joint_hm),
            },
        )
        for method in sorted(results.by_method, key=results.joint, reverse=True)
    ]
    return results_figure(
        rows,
        "Base and novel accuracy and joint HM of each method on the twelve small tasks, with 95% intervals "
        f"over tasks. The highest joint HM is that of {rows[0].method}.",
    )


def tables(measurements: Sequence[Measurement]) -> dict[str, str]:
    """The generated tables of recipes/study/TABLES.md by the names of their markers."""
    named = {}
    for size in get_args(Size):
        tasks = downstream_names(size=size), downstream_names("unseen", size)
        named[f"{size}-apart"] = apart_table(measurements, *tasks)
        named[f"{size}-joint"] = joint_table(measurements, *tasks)
    return named | {f"part-{method}": part_table(measurements, method) for method in IN_PART}


def generated(measurements: Sequence[Measurement]) -> dict[Path, dict[str, str]]:
    """All generated tables, by page and by the names of their markers."""
    return {
        STUDY: {"main": main_table(measurements)},
        TABLES: tables(measurements),
        README: {"results": short_table(measurements, downstream_names())},
    }


def _unchanged(measurements: Iterable[Measurement]) -> list[Measurement]:
    """Those of methods without a variant."""
    labels = {*METHODS, *(f"{name} ({UNLABELLED})" for name in METHODS)}
    return [run for run in measurements if run.method in labels]


def _marked(label: str) -> str:
    """A method with a dagger where it saw unlabelled images, which the page explains."""
    remark = f" ({UNLABELLED})"
    return label.replace(f"{remark}`", "` †").replace(remark, " †")


def main() -> None:
    """Add records, and write the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folders", type=Path, nargs="*", help="folders of run records")
    folders = parser.parse_args().folders
    known = {run.run: run for run in read_measurements()} if FILE.exists() else {}
    for path in [path for folder in folders for path in sorted(folder.glob("*.json"))]:
        run = Measurement.of(read_record(path))
        known[run.run] = run
    write_measurements(known.values())
    measurements = read_measurements()
    for path, named in generated(measurements).items():
        page = path.read_text(encoding="utf-8")
        for name, table in named.items():
            page = with_table(page, name, table)
        path.write_text(page, encoding="utf-8")
    FIGURE.write_text(figure(measurements), encoding="utf-8")


if __name__ == "__main__":
    end_with(main)
