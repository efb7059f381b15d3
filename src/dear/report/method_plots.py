"""Figures that compare methods: averages, the gain over zero-shot by data set, accuracy against costs."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from textwrap import fill

import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.text import Annotation, Text
from matplotlib.ticker import EngFormatter, LogLocator, MaxNLocator, NullFormatter

from dear.errors import DataError
from dear.report.base_to_novel import MEASURE_TITLES, MEASURES, Entry, Table
from dear.report.drawing import (
    INK,
    NEUTRAL,
    PALETTE,
    Drawing,
    drawable,
    plain_axes,
)

ACROSS = 4  # panels beside each other
PANEL = 20  # marks that take as long to draw as an empty panel, a legend's entry or a label that is placed
GAIN, LOSS = PALETTE[0], PALETTE[4]
NARROW, WIDE = 4.0, 200.0
"""Ratios of costs below which ticks are even numbers, and below which there are several in a decade."""
ANGLES = 2 * np.pi * np.arange(12) / 12
DISTANCES = np.array([7, 12, 18, 26, 36, 48, 62, 80, 102, 128, 160])
"""Distances in points at which a label is tried; from the third on a line leads to it."""
OFFSETS = (DISTANCES[:, None, None] * np.stack([np.cos(ANGLES), np.sin(ANGLES)], axis=1)).reshape(-1, 2)
DISTANT = np.repeat(DISTANCES[2] <= DISTANCES, len(ANGLES))
MARK = 5  # pixels from the middle of a point that a label leaves free
LINE = 0.1  # what a line across a label counts, a label across a label being 1


@dataclass(frozen=True)
class Costs:
    """The average HM of a method, in percent, and what it needs; None if a record does not say."""

    method: str
    hm: float
    parameters: float | None
    seconds: float | None


def averages_down(table: Table) -> Drawing | None:
    """The table's averages for many methods: methods down, a panel a measure; None if no method has one."""
    averages = _averages(table)
    if not averages:
        return None
    if not drawable(len(averages), len(MEASURES)):
        return None

    def paint(figure: Figure) -> None:
        panels = figure.subplots(1, len(MEASURES), sharey=True)
        rows = range(len(averages))
        for axes, measure in zip(panels, MEASURES, strict=True):
            means = [entry[measure].mean for _, entry in averages]
            spreads = [entry[measure].spread or 0.0 for _, entry in averages]
            best = max(means)
            axes.barh(rows, means, 0.74, color=[PALETTE[0] if m == best else NEUTRAL for m in means])
            if any(spreads):
                axes.errorbar(means, rows, xerr=spreads, fmt="none", ecolor=INK, elinewidth=1, capsize=2)
            for row, mean, spread in zip(rows, means, spreads, strict=True):
                axes.text(mean + spread + 1.5, row, f"{mean:.1f}", va="center", fontsize=8)
            axes.set_title(MEASURE_TITLES[measure], fontsize=10)
            axes.set_xlim(0, max(m + s for m, s in zip(means, spreads, strict=True)) * 1.22)
            axes.set_yticks(rows, [method for method, _ in averages])
            axes.tick_params(length=0)
            axes.set_xticks([])
            axes.spines[:].set_visible(False)
        panels[0].invert_yaxis()

    longest = max(len(method) for method, _ in averages)
    return _averages_drawing(averages, (7.4 + 0.06 * longest, 0.5 + 0.25 * len(averages)), paint)


def accuracy_bars(table: Table) -> Drawing:
    """The table's averages as bars, in percent: one bar per method, with deviations where known."""
    averages = _averages(table)
    if not averages:
        raise DataError("no method has results on every data set, so there is no average to draw")
    colors = [NEUTRAL, *PALETTE]

    def paint(figure: Figure) -> None:
        axes = figure.add_subplot()
        width = 0.8 / len(averages)
        for number, (method, entry) in enumerate(averages):
            x = [group - 0.4 + width * (number + 0.5) for group in range(len(MEASURES))]
            means = [entry[measure].mean for measure in MEASURES]
            spreads = [entry[measure].spread or 0.0 for measure in MEASURES]
            axes.bar(x, means, width * 0.9, color=colors[number % len(colors)], label=method)
            if any(spreads):
                axes.errorbar(x, means, spreads, fmt="none", ecolor=INK, elinewidth=1, capsize=2)
            for centre, mean, spread in zip(x, means, spreads, strict=True):
                axes.text(
                    centre, mean + spread + 1, f"{mean:.1f}", ha="center", va="bottom",
                    fontsize=9 if len(averages) < 5 else 7.5,
                )  # fmt: skip
        axes.set_xticks(range(len(MEASURES)), [MEASURE_TITLES[measure] for measure in MEASURES])
        axes.set_ylabel("average accuracy (%)")
        cells = [entry[measure] for _, entry in averages for measure in MEASURES]
        axes.set_ylim(0, max(cell.mean + (cell.spread or 0) for cell in cells) * 1.12 + 1)
        plain_axes(axes)
        axes.tick_params(axis="x", length=0)
        ncols = min(len(averages), 4)
        figure.legend(loc="outside upper center", ncols=ncols, handlelength=1.1, handleheight=1.0)

    return _averages_drawing(averages, (min(4.4 + 0.5 * len(averages), 7.2), 3.2), paint)


def _averages(table: Table) -> list[tuple[str, Entry]]:
    """The methods that have an average."""
    entries = zip(table.methods, table.average.entries, strict=True)
    return [(method, entry) for method, entry in entries if entry]


def _averages_drawing(
    averages: Sequence[tuple[str, Entry]], size: tuple[float, float], paint: Callable[[Figure], None]
) -> Drawing:
    words = "; ".join(
        f"{method}: " + ", ".join(f"{MEASURE_TITLES[m]} {entry[m].mean:.1f}" for m in MEASURES)
        for method, entry in averages
    )

    return Drawing("bars", f"Average accuracy in percent. {words}.", size, paint)


def gains(table: Table, reference: str) -> dict[str, dict[str, float]]:
    """Method -> data set -> HM minus that of the reference, in points, where both have a run."""
    column = table.methods.index(reference)
    by_method: dict[str, dict[str, float]] = {}
    for row in table.rows:
        base = row.entries[column]
        for method, entry in zip(table.methods, row.entries, strict=True):
            if base is not None and entry is not None and method != reference:
                by_method.setdefault(method, {})[row.title] = entry["hm"].mean - base["hm"].mean
    return by_method


def gain_bars(table: Table, reference: str) -> Drawing | None:
    """A panel a method: its gain in HM over the reference, by data set, all on one scale; None if no method
    has a data set in common with the reference.
    """
    by_method = gains(table, reference)
    titles = [row.title for row in table.rows if any(row.title in gain for gain in by_method.values())]
    if not by_method:
        return None
    if not drawable(len(by_method), max(len(titles), PANEL)):
        return None
    across = min(ACROSS, len(by_method))
    down = -(-len(by_method) // across)

    def paint(figure: Figure) -> None:
        panels = figure.subplots(down, across, sharex=True, sharey=True, squeeze=False)
        for axes, (method, by_title) in zip(panels.flat, by_method.items(), strict=False):
            y = [titles.index(title) for title in by_title]
            values = [*by_title.values()]
            axes.barh(y, values, 0.72, color=[GAIN if value >= 0 else LOSS for value in values])
            axes.axvline(0, color=INK, linewidth=0.8)
            axes.set_title(fill(method, 22), fontsize=10)
            axes.set_yticks(range(len(titles)), titles, fontsize=8)
            axes.tick_params(axis="y", length=0)
            axes.tick_params(axis="x", labelsize=8)
            axes.spines[["top", "right", "left"]].set_visible(False)
            axes.grid(axis="x", color=INK, alpha=0.15, linewidth=0.8)
            axes.set_axisbelow(True)
        for axes in panels.flat[len(by_method) :]:
            axes.set_visible(False)
        panels[0, 0].invert_yaxis()
        figure.supxlabel(f"points of HM over {reference}", fontsize=9)

    words = "; ".join(
        f"{method}: " + ", ".join(f"{title} {value:+.1f}" for title, value in by_title.items())
        for method, by_title in by_method.items()
    )
    longest = max(map(len, titles))
    size = (0.075 * longest + 1.75 * across + 0.3, down * (0.17 * len(titles) + 0.42) + 0.5)

    return Drawing("gains", f"Gain in HM over {reference} by data set, in points. {words}.", size, paint)


def costs_compared(methods: Sequence[Costs]) -> dict[str, dict[str, tuple[float, float]]]:
    """The costs that at least two methods have, by what they are: method -> cost and average HM."""
    fields = {"trained parameters": "parameters", "seconds per run": "seconds"}
    points_of = {
        title: {costs.method: (value, costs.hm) for costs in methods if (value := getattr(costs, field))}
        for title, field in fields.items()
    }
    return {title: points for title, points in points_of.items() if len(points) > 1}


def cost_plot(methods: Sequence[Costs], reference: str | None) -> Drawing | None:
    """Average HM against trained parameters and seconds of a run, each on a logarithmic scale; a method
    without parameters is a line. None for fewer than two methods with a cost.
    """
    points_of = costs_compared(methods)
    if not points_of:
        return None
    if not drawable(len(methods), PANEL):
        return None
    line = next((costs for costs in methods if costs.method == reference), None)

    def paint(figure: Figure) -> None:
        axes_of_panels = figure.subplots(1, len(points_of), squeeze=False)[0]
        for axes, (title, points) in zip(axes_of_panels, points_of.items(), strict=True):
            cost_scale(axes, [cost for cost, _ in points.values()])
            axes.margins(0.16, 0.14)
            colors = [NEUTRAL if method == reference else PALETTE[0] for method in points]
            axes.scatter(*zip(*points.values(), strict=True), s=26, color=colors, zorder=3)
            if line is not None and line.method not in points:
                axes.axhline(line.hm, color=NEUTRAL, linestyle="--", linewidth=1.2, label=line.method)
                axes.legend(loc="lower right", fontsize=8)
            axes.set(xlabel=title, ylabel="average HM (%)")
            plain_axes(axes)
        figure.draw_without_rendering()  # settles the layout, in which labels then find their places
        for axes, points in zip(axes_of_panels, points_of.values(), strict=True):
            place_labels(axes, points)

    words = "; ".join(
        f"{costs.method}: HM {costs.hm:.1f}"
        + (f", {costs.parameters:,.0f} parameters" if costs.parameters is not None else "")
        + (f", {costs.seconds:,.1f} seconds" if costs.seconds is not None else "")
        for costs in methods
    )

    return Drawing(
        "costs",
        f"Average HM against costs. {words}.",
        (5.4 if len(points_of) == 1 else 9.4, max(4.0, 0.13 * len(methods))),
        paint,
    )


def cost_scale(axes: Axes, costs: Sequence[float]) -> None:
    """A logarithmic axis of costs on which some ticks have numbers, within a decade too."""
    axes.set_xscale("log")
    ratio = max(costs) / min(costs)
    if ratio < NARROW:
        axes.xaxis.set_major_locator(MaxNLocator(4))
    elif ratio < WIDE:
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.xaxis.set_minor_formatter(NullFormatter())


def place_labels(axes: Axes, points: Mapping[str, tuple[float, float]]) -> list[Annotation]:
    """Name points so that no name covers another, a point or the edge of the axes where that is possible:
    each name takes the nearest free position, distant ones with a line that leads to the point. The figure's
    layout must be settled.

    A name is measured once; its positions are compared with all that is occupied at a time, so that n names
    take n drawn texts and in the order of n^2 additions.
    """
    edges = np.array(axes.get_window_extent().extents)
    pixels = axes.figure.dpi / 72
    marks = axes.transData.transform([*points.values()])
    occupied = [np.concatenate([marks - MARK, marks + MARK], axis=1)]
    lines = [np.empty((0, 4))]
    placed = []
    for number, (name, point) in sorted(enumerate(points.items()), key=lambda item: item[1][1]):
        probe = _label(axes, name, point, OFFSETS[0], False)
        size = np.array(Text.get_window_extent(probe).size) + 3
        probe.remove()
        anchors = marks[number] + pixels * OFFSETS
        lower = anchors + size * (np.sign(OFFSETS.round()) - 1) / 2
        boxes = np.concatenate([lower, lower + size], axis=1)
        middles = lower + size / 2
        leads = np.concatenate(
            [np.minimum(middles, marks[number]), np.maximum(middles, marks[number])], axis=1
        )
        leads[~DISTANT] = 0
        others = np.delete(np.concatenate(occupied), number, axis=0)
        crossed = size.prod() - _overlaps(boxes, edges[None]) + _overlaps(boxes, np.concatenate(occupied))
        crossed += LINE * (_overlaps(boxes, np.concatenate(lines)) + _overlaps(leads, others))
        best = int(np.argmin(np.where(crossed < 1e-6, 0, crossed)))
        placed.append(_label(axes, name, point, OFFSETS[best], bool(DISTANT[best])))
        occupied.append(boxes[best, None])
        if DISTANT[best]:
            lines.append(leads[best, None])
    return placed


def _label(
    axes: Axes, name: str, point: tuple[float, float], offset: Float[np.ndarray, "2"], distant: bool
) -> Annotation:
    x, y = offset
    line = {"arrowstyle": "-", "color": INK, "alpha": 0.45, "linewidth": 0.7, "shrinkA": 0, "shrinkB": 3}
    label = axes.annotate(
        name, point, (x, y), textcoords="offset points", fontsize=8,
        ha=("right", "center", "left")[int(np.sign(x.round())) + 1],
        va=("top", "center", "bottom")[int(np.sign(y.round())) + 1],
        arrowprops=line if distant else None,
    )  # fmt: skip
    label.set_in_layout(False)
    return label


def _overlaps(
    boxes: Float[np.ndarray, "box 4"], others: Float[np.ndarray, "other 4"]
) -> Float[np.ndarray, "box"]:
    """The areas that boxes (left, bottom, right, top) share with others, summed over these."""
    low = np.maximum(boxes[:, None, :2], others[None, :, :2])
    high = np.minimum(boxes[:, None, 2:], others[None, :, 2:])
    areas: Float[np.ndarray, box] = np.clip(high - low, 0, None).prod(axis=2).sum(axis=1)
    return areas
