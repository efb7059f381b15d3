"""Methods on parts of one large task, by the number of base classes: `python -m tools.class_counts FOLDER...`
stores the records of recipes/study/classes.yaml, steps-6.yaml, steps-15.yaml and steps-30.yaml, a row each,
and writes the table of recipes/study/TABLES.md and the figure of docs/study.md; without any folder it writes
these alone. Run it in the root of the repository.
"""

import argparse
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from statistics import fmean
from typing import Self

from matplotlib.figure import Figure

from dear.errors import DataError
from dear.evaluation.records import read_record
from dear.evaluation.schema import harmonic_mean
from dear.methods.registry import FROZEN
from dear.report.drawing import NEUTRAL, PALETTE, Drawing, plain_axes
from tools import end_with
from tools.document import with_table
from tools.measurements import FILE, TABLES, Measurement, Value, read_measurements, write_measurements

COUNTS, FIGURE, NAME = Path("docs/measured/class_counts.csv"), Path("docs/images/classes.svg"), "class-counts"
TASK, CLASSES = "holiday-albums", 60
TRAINED = ("dear", "mmrl", "promptsrc")
METHODS = (*TRAINED, "dear+")
MEASURES: dict[str, tuple[Value, Value]] = {
    "HM": (attrgetter("base"), attrgetter("novel")),
    "joint HM": (attrgetter("joint_base"), attrgetter("joint_novel")),
}


def base_classes(data: str) -> int:
    """The base classes of the task or a part of it: 15 of holiday-albums-15a. Raises DataError for others."""
    part = re.fullmatch(rf"{TASK}(?:-(\d+)[a-z])?", data)
    if part is None:
        raise DataError(f"{data} is no part of {TASK}.")
    return int(part[1] or CLASSES)


@dataclass(frozen=True)
class Counts:
    """Runs on the task and its parts with one seed.

    Attributes:
        runs: By base classes, method, and True where the training has as many steps as that of the task.
    """

    runs: dict[tuple[int, str, bool], list[Measurement]]

    @classmethod
    def of(cls, measurements: Iterable[Measurement]) -> Self:
        """A method takes as many steps on the whole task as it has there, so fewer on a part by default."""
        measurements = [run for run in measurements if run.method in (FROZEN, *METHODS)]
        whole = {run.method: run.steps for run in measurements if run.data == TASK}
        runs: dict[tuple[int, str, bool], list[Measurement]] = {}
        for run in measurements:
            classes = base_classes(run.data)
            equal = classes < CLASSES and run.method in TRAINED and run.steps == whole[run.method]
            runs.setdefault((classes, run.method, equal), []).append(run)
        return cls(runs)

    @property
    def rows(self) -> list[tuple[int, bool]]:
        """Base classes, and whether steps are those of the task: first those by the authors' epochs."""
        return sorted({(classes, equal) for classes, _, equal in self.runs}, key=lambda row: (row[1], row[0]))

    def hm(self, classes: int, method: str, equal: bool, measure: str) -> float | None:
        """HM of the means over parts; None if the method was not run so."""
        runs = self.runs.get((classes, method, equal and method in TRAINED), [])
        return harmonic_mean(*(fmean(map(value, runs)) for value in MEASURES[measure])) if runs else None

    def parts(self, classes: int) -> int:
        return max(len(runs) for (number, *_), runs in self.runs.items() if number == classes)

    def table(self) -> str:
        """One row for each number of classes and of steps."""
        head = [f"{method}: {measure}" for measure in MEASURES for method in (FROZEN, *METHODS)]
        lines = [f"| base classes | parts | steps of dear, mmrl, promptsrc | {' | '.join(head)} |"]
        lines.append("| ---: | ---: | --- |" + " ---: |" * len(head))
        for classes, equal in self.rows:
            numbers = [
                self.hm(classes, m, equal, measure) for measure in MEASURES for m in (FROZEN, *METHODS)
            ]
            cells = ["" if number is None else f"{number:.1f}" for number in numbers]
            steps = [self.runs.get((classes, method, equal)) for method in TRAINED]
            told = ", ".join("-" if runs is None else str(runs[0].steps) for runs in steps)
            lines.append(f"| {classes} | {self.parts(classes)} | {told} | {' | '.join(cells)} |")
        return "\n".join(lines)

    def figure(self) -> Drawing:
        """HM minus zero-shot CLIP's by base classes: dashed lines have equal steps."""
        lines = [
            (method, equal, points)
            for equal in (False, True)
            for method in (TRAINED if equal else METHODS)
            if len(points := self._gains(method, equal)) > 1
        ]

        def paint(figure: Figure) -> None:
            axes = figure.subplots()
            for method, equal, points in lines:
                color = PALETTE[METHODS.index(method)]
                style, label = ("--", None) if equal else ("-", method)
                axes.plot(*zip(*points, strict=True), style, color=color, marker="o", label=label)
            axes.axhline(0, color=NEUTRAL, linewidth=1)
            axes.set_xscale("log")
            ticks = sorted({classes for classes, *_ in self.runs})
            axes.set_xticks(ticks, [str(tick) for tick in ticks])
            axes.minorticks_off()
            axes.set(xlabel="base classes", ylabel="HM minus zero-shot CLIP (points)")
            plain_axes(axes)
            axes.legend(loc="upper left")

        text = "; ".join(
            f"{method}{' with equal steps' if equal else ''}: "
            + ", ".join(f"{gain:+.1f} with {classes}" for classes, gain in points)
            for method, equal, points in lines
        )
        return Drawing("classes", f"HM minus zero-shot CLIP by base classes. {text}.", (6.4, 3.2), paint)

    def _gains(self, method: str, equal: bool) -> list[tuple[int, float]]:
        """The gain in HM by base classes; equal steps end at the whole task, where they are its own."""
        points = []
        for classes in sorted({classes for classes, *_ in self.runs}):
            number = self.hm(classes, method, equal and classes < CLASSES, "HM")
            frozen = self.hm(classes, FROZEN, False, "HM")
            if number is not None and frozen is not None:
                points.append((classes, number - frozen))
        return points


def counts(parts: Sequence[Measurement], measurements: Sequence[Measurement]) -> Counts:
    """The runs on parts and, of the measurements of the study, those with seed 1 on the whole task."""
    whole = [run for run in measurements if (run.data, run.seed) == (TASK, 1)]
    return Counts.of([*parts, *whole])


def main() -> None:
    """Add records, and write the table and the figure."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folders", type=Path, nargs="*", help="folders of run records")
    runs = {(*run.run, run.steps): run for run in (read_measurements(COUNTS) if COUNTS.exists() else ())}
    for folder in parser.parse_args().folders:
        measured = (Measurement.of(read_record(path)) for path in sorted(folder.glob("*.json")))
        runs |= {(*run.run, run.steps): run for run in measured if run.data != TASK}
    write_measurements(runs.values(), COUNTS)
    result = counts(read_measurements(COUNTS), read_measurements(FILE))
    TABLES.write_text(with_table(TABLES.read_text(encoding="utf-8"), NAME, result.table()), encoding="utf-8")
    FIGURE.write_text(result.figure().svg, encoding="utf-8")


if __name__ == "__main__":
    end_with(main)
