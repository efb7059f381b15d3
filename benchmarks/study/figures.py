"""The figures of the study: what each method reaches, what each reading of the paper moves, and the gain by
the number of classes. Intervals are 95% t intervals over tasks.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure

from benchmarks.study.runs import NoRuns, by_task, complete, difference, is_variant, mean, read
from benchmarks.study.tables import CLASSES, FROZEN, TRAINED, runs_by_classes
from benchmarks.study.variants import OTHER_READINGS, READINGS, variant_runs
from dear.report.drawing import INK, MARKERS, NEUTRAL, PALETTE, Drawing, legend_below, plain_axes
from dear.stats import half_width
from dear.world.names import downstream_names

Points = Mapping[str, Sequence[tuple[float, float]]]
"""Row -> of each measure the mean, and half of its interval."""


def results() -> Drawing:
    """The methods that were run on all small tasks, the highest joint HM first."""
    runs = read("base_to_novel")
    runs = complete(runs[~runs.method.map(is_variant)], downstream_names())
    rows = {
        str(method): [
            (mean(of, measure), half_width([*by_task(of, measure)]) or 0.0)
            for measure in ("base", "novel", "joint")
        ]
        for method, of in runs.groupby("method")
    }
    rows = dict(sorted(rows.items(), key=lambda row: -row[1][2][0]))
    words = "; ".join(f"{name}: {cells[2][0]:.1f} ± {cells[2][1]:.1f}" for name, cells in rows.items())
    return points_figure(
        "results",
        f"Accuracy of each method on the small tasks, with 95% intervals. Joint HM: {words}.",
        rows,
        ("base classes", "novel classes", "joint HM"),
        "percent, mean of the small tasks",
    )


def readings() -> Drawing:
    """The readings of the paper, each minus DeAR as it is."""
    of = variant_runs("dear", READINGS)
    if missing := [label for label in OTHER_READINGS if label not in of]:
        raise NoRuns(", ".join(missing))
    rows = {}
    for label in OTHER_READINGS:
        found = [difference(*of[label], measure) for measure in ("base", "novel", "hm")]
        rows[label] = [(value, half or 0.0) for value, half in found]
    words = "; ".join(f"{name}: HM {cells[2][0]:+.1f} ± {cells[2][1]:.1f}" for name, cells in rows.items())
    return points_figure(
        "readings",
        f"What each reading moves, in points. {words}.",
        rows,
        ("base classes", "novel classes", "HM"),
        "points against DeAR as it is",
    )


def points_figure(name: str, description: str, rows: Points, measures: Sequence[str], unit: str) -> Drawing:
    """A row for each name: of each measure the mean, and half of its interval to both sides."""

    def paint(figure: Figure) -> None:
        axes = figure.add_subplot()
        for number, measure in enumerate(measures):
            means, halves = zip(*(cells[number] for cells in rows.values()), strict=True)
            places = [place + 0.22 * (number - 1) for place in range(len(rows))]
            look: dict[str, Any] = {"color": PALETTE[number], "marker": MARKERS[number], "label": measure}
            axes.errorbar(means, places, xerr=halves, linestyle="", markersize=5, **look)
        axes.axvline(0, color=INK, linewidth=0.8)
        axes.set_yticks(range(len(rows)), [*rows])
        axes.invert_yaxis()
        axes.set_xlabel(unit)
        plain_axes(axes, "x")
        legend_below(figure, 3)

    return Drawing(name, description, (6.4, 1.0 + 0.48 * len(rows)), paint)


def classes() -> Drawing:
    """HM minus that of zero-shot CLIP by base classes; dashed lines have as many steps on a part as on the
    whole task.
    """
    parts, methods = runs_by_classes(), (*TRAINED, "dear+")
    counts = sorted({count for count, *_ in parts})
    lines = []
    for equal in (False, True):
        for method in TRAINED if equal else methods:
            points = []
            for count in counts:
                runs = parts.get((count, method, equal and count < CLASSES))
                if runs is not None:
                    points.append((count, mean(runs, "hm") - mean(parts[count, FROZEN, False], "hm")))
            if len(points) > 1:
                lines.append((method, equal, points))

    def paint(figure: Figure) -> None:
        axes = figure.subplots()
        for method, equal, points in lines:
            color, label = PALETTE[methods.index(method)], None if equal else method
            axes.plot(
                *zip(*points, strict=True), "--" if equal else "-", color=color, marker="o", label=label
            )
        axes.axhline(0, color=NEUTRAL, linewidth=1)
        axes.set_xscale("log")
        axes.set_xticks(counts, [str(count) for count in counts])
        axes.minorticks_off()
        axes.set(xlabel="base classes", ylabel="HM minus zero-shot CLIP (points)")
        plain_axes(axes)
        axes.legend(loc="upper left")

    words = "; ".join(
        f"{method}{' with equal steps' if equal else ''}: "
        + ", ".join(f"{gain:+.1f} with {count}" for count, gain in points)
        for method, equal, points in lines
    )
    return Drawing("classes", f"HM minus zero-shot CLIP by base classes. {words}.", (6.4, 3.2), paint)


FIGURES: dict[str, Callable[[], Drawing]] = {"results": results, "readings": readings, "classes": classes}
