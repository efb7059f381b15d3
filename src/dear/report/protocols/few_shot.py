"""Few-shot learning in the report: accuracy by number of shots, for each data set and on average."""

from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any

from matplotlib.figure import Figure as Canvas

from dear.errors import DataError
from dear.report.drawing import DASHES, NEUTRAL, PALETTE, Drawing, drawable, plain_axes
from dear.report.grid import Cell, Grid, GridRow, marked
from dear.report.protocols import Figure, ProtocolReport
from dear.report.records import (
    AVERAGE,
    CHANCE,
    Record,
    accuracy,
    checked,
    class_count,
    data_set,
    data_set_title,
    grouped,
    method_label,
)

ACROSS = 3  # panels beside each other
PANEL = 20  # marks that take as long to draw as an empty panel
Curves = Mapping[str, Mapping[str, Mapping[int, Cell]]]
"""Data set title (the average last) -> method -> shots -> accuracy."""


def few_shot_curves(records: Iterable[Record]) -> Curves:
    """Means and deviations over seeds, in percent. A method has an average if it has every data set.

    Raises:
        DataError: for records that cannot be combined in one table.
    """
    records = checked(records)
    curves: dict[str, dict[str, dict[int, Cell]]] = {}
    sums: dict[tuple[str, int], dict[str, dict[Any, float]]] = {}
    data_sets = grouped(records, data_set)
    for name, of_data in data_sets.items():
        for method, runs in grouped(of_data, method_label).items():
            by_shots: dict[int, dict[Any, float]] = {}
            for run in runs:
                by_shots.setdefault(run["shots"], {})[run.get("seed")] = 100 * accuracy(run, "all")
            for shots, by_seed in sorted(by_shots.items()):
                title = data_set_title(of_data[0])
                curves.setdefault(title, {}).setdefault(method, {})[shots] = Cell.of([*by_seed.values()])
                sums.setdefault((method, shots), {})[name] = by_seed
    for (method, shots), by_data in sums.items():
        seeds = set.intersection(*(set(by_seed) for by_seed in by_data.values()))
        if len(by_data) == len(data_sets) and seeds:
            means = [fmean(by_seed[seed] for by_seed in by_data.values()) for seed in sorted(seeds)]
            curves.setdefault(AVERAGE, {}).setdefault(method, {})[shots] = Cell.of(means)
    return curves


def few_shot_grid(records: Iterable[Record]) -> Grid:
    """The curves as a table: one row per data set and method, one column per number of shots."""
    records = checked(records)
    curves = few_shot_curves(records)
    chance = {data_set_title(run): 100 / count for run in records if (count := class_count(run))}
    if AVERAGE in curves and {*curves} == {*chance, AVERAGE}:
        chance[AVERAGE] = fmean(chance.values())
    shots = sorted({n for methods in curves.values() for curve in methods.values() for n in curve})
    rows: list[GridRow] = []
    for title, methods in curves.items():
        block = [
            GridRow(f"{title}: {method}", tuple(curve.get(n) for n in shots))
            for method, curve in methods.items()
        ]
        if title in chance:
            rows.append(GridRow(f"{title}: {CHANCE}", tuple(Cell(chance[title]) for _ in shots)))
        rows += marked(block)
    columns = tuple("0 shots" if n == 0 else f"{n} shot{'s' if n > 1 else ''}" for n in shots)
    return Grid(
        "few-shot",
        "Few-shot learning",
        "Data set: method",
        columns,
        tuple(rows),
        ("Percent, all classes. 0 shots is zero-shot CLIP.",),
    )


def few_shot_plot(curves: Curves) -> Drawing | None:
    """Accuracy in percent by shots, the average first; 0 shots is a horizontal line. Raises DataError if
    there is none.
    """
    titles = sorted(curves, key=lambda title: title != AVERAGE)
    if not titles:
        raise DataError("there is no few-shot run to draw")
    methods = list(dict.fromkeys(method for title in titles for method in curves[title]))
    shots_of_all = {n for title in titles for curve in curves[title].values() for n in curve}
    if not drawable(len(titles), max(len(methods) * len(shots_of_all), PANEL)):
        return None
    colored = [m for m in methods if any(set(curves[title].get(m, {})) - {0} for title in titles)]
    down = -(-len(titles) // ACROSS)

    def paint(figure: Canvas) -> None:
        for number, title in enumerate(titles, start=1):
            axes = figure.add_subplot(down, ACROSS, number)
            shots = sorted({n for curve in curves[title].values() for n in curve if n})
            for method, curve in curves[title].items():
                style: dict[str, Any] = {"label": method, "linewidth": 1.4}
                if method not in colored:
                    axes.axhline(curve[0].mean, color=NEUTRAL, linestyle="--", **style)
                    continue
                color = colored.index(method)
                style["color"] = PALETTE[color % len(PALETTE)]
                dashes = DASHES[color // len(PALETTE) % len(DASHES)]
                measured = [n for n in shots if n in curve]
                x, means = [shots.index(n) for n in measured], [curve[n].mean for n in measured]
                axes.plot(x, means, marker="o", markersize=3, linestyle=dashes, **style)
                spreads = [curve[n].spread or 0.0 for n in measured]
                if any(spreads):
                    low, high = (
                        [m + sign * s for m, s in zip(means, spreads, strict=True)] for sign in (-1, 1)
                    )
                    axes.fill_between(x, low, high, color=style["color"], alpha=0.18, linewidth=0)
            axes.set_xticks(range(len(shots)), [str(n) for n in shots])
            axes.set_title(title, fontsize=10)
            if number > len(titles) - ACROSS:
                axes.set_xlabel("images per class")
            plain_axes(axes)
        handles = {
            label: handle
            for axes in figure.axes
            for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
        }
        figure.legend(
            handles.values(), handles.keys(), loc="outside lower center", ncols=min(len(methods), 4)
        )

    words = "; ".join(
        f"{title}: " + ", ".join(
            f"{method} " + " ".join(f"{n} shots {cell.mean:.1f}" for n, cell in curve.items())
            for method, curve in curves[title].items()
        )
        for title in titles
    )  # fmt: skip

    text = f"Accuracy in percent by images per class. {words}."
    size = (7.6, 0.4 + 2.1 * down + 0.22 * -(-len(methods) // 4))
    return Drawing("few-shot", text, size, paint)


class FewShotReport(ProtocolReport):
    """A table and curves over the shots."""

    def tables(self, records: Sequence[Record]) -> list[Grid]:
        return [few_shot_grid(records)]

    def figures(self, records: Sequence[Record]) -> dict[str, Figure]:
        curves = few_shot_plot(few_shot_curves(records))
        caption = (
            "Accuracy in percent by images per class (dashed: zero-shot CLIP); bands are standard deviations "
            "over seeds."
        )
        return {"few-shot": Figure(curves, "Few-shot accuracy by number of shots", caption)}


REPORT = FewShotReport()
