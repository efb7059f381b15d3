"""Figures that compare methods: gain over zero-shot by data set, and accuracy against what a method costs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import cos, pi, sin
from textwrap import fill

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.text import Annotation
from matplotlib.ticker import EngFormatter, NullFormatter
from matplotlib.transforms import Bbox

from dear.report.plots import NEUTRAL, PALETTE, plain
from dear.report.svg import INK, Drawing, draw
from dear.report.tables import MEASURES, SHOWN, Table

ACROSS = 4  # panels beside each other
GAIN, LOSS = PALETTE[0], PALETTE[4]
AWAY = (7, 12, 18, 26, 36, 48, 62)
"""Distances in points at which a place for a label is sought; from the third on a line leads to it."""
DIRECTIONS = 12


@dataclass(frozen=True)
class Costs:
    """What a method reaches (average HM in percent) and needs; None if a record does not say."""

    method: str
    reached: float
    parameters: float | None
    seconds: float | None


def gains(table: Table, reference: str) -> dict[str, dict[str, float]]:
    """Method -> data set -> HM minus that of the reference, in points, where both have a run."""
    at = table.methods.index(reference)
    found: dict[str, dict[str, float]] = {}
    for row in table.rows:
        base = row.entries[at]
        for method, entry in zip(table.methods, row.entries, strict=True):
            if base is not None and entry is not None and method != reference:
                found.setdefault(method, {})[row.title] = entry["hm"].mean - base["hm"].mean
    return found


def gain_bars(table: Table, reference: str) -> Drawing | None:
    """A panel a method: its gain in HM over the reference, by data set, all on one scale; None if no method
    has a data set in common with the reference.
    """
    found = gains(table, reference)
    if not found:
        return None
    titles = [row.title for row in table.rows if any(row.title in one for one in found.values())]
    across = min(ACROSS, len(found))
    down = -(-len(found) // across)

    def paint(figure: Figure) -> None:
        panels = figure.subplots(down, across, sharex=True, sharey=True, squeeze=False)
        for axes, (method, by_title) in zip(panels.flat, found.items(), strict=False):
            places = [titles.index(title) for title in by_title]
            values = [*by_title.values()]
            axes.barh(places, values, 0.72, color=[GAIN if value >= 0 else LOSS for value in values])
            axes.axvline(0, color=INK, linewidth=0.8)
            axes.set_title(fill(method, 22), fontsize=10)
            axes.set_yticks(range(len(titles)), titles, fontsize=8)
            axes.tick_params(axis="y", length=0)
            axes.tick_params(axis="x", labelsize=8)
            axes.spines[["top", "right", "left"]].set_visible(False)
            axes.grid(axis="x", color=INK, alpha=0.15, linewidth=0.8)
            axes.set_axisbelow(True)
        for axes in panels.flat[len(found) :]:
            axes.set_visible(False)
        panels[0, 0].invert_yaxis()
        figure.supxlabel(f"points of HM over {reference}", fontsize=9)

    words = "; ".join(
        f"{method}: " + ", ".join(f"{title} {value:+.1f}" for title, value in by_title.items())
        for method, by_title in found.items()
    )
    longest = max(map(len, titles))
    size = (0.075 * longest + 1.75 * across + 0.3, down * (0.17 * len(titles) + 0.42) + 0.5)
    rows: list[Sequence[object]] = [["method", "data set", f"points of HM over {reference}"]]
    rows += [
        [method, title, value] for method, by_title in found.items() for title, value in by_title.items()
    ]
    return draw("gains", f"Gain in HM over {reference} by data set, in points. {words}.", size, paint, rows)


def cost_plot(methods: Sequence[Costs], reference: str | None) -> Drawing | None:
    """Average HM against trained parameters and seconds of a run, each on a logarithmic scale; a method
    without parameters is a line. None for fewer than two methods with a cost.
    """
    panels = {"trained parameters": "parameters", "seconds per run": "seconds"}
    known = {
        words: [(one, value) for one in methods if (value := getattr(one, field))]
        for words, field in panels.items()
    }
    known = {words: some for words, some in known.items() if len({one.method for one, _ in some}) > 1}
    if not known:
        return None
    line = next((one for one in methods if one.method == reference), None)

    def paint(figure: Figure) -> None:
        drawn = []
        for axes, (words, some) in zip(
            figure.subplots(1, len(known), squeeze=False)[0], known.items(), strict=True
        ):
            axes.set_xscale("log")
            axes.xaxis.set_major_formatter(EngFormatter(sep=""))
            axes.xaxis.set_minor_formatter(NullFormatter())
            axes.margins(0.16, 0.14)
            colors = [NEUTRAL if one.method == reference else PALETTE[0] for one, _ in some]
            axes.scatter(
                [value for _, value in some], [one.reached for one, _ in some], s=26, color=colors, zorder=3
            )
            if line is not None and line.method not in {one.method for one, _ in some}:
                axes.axhline(line.reached, color=NEUTRAL, linestyle="--", linewidth=1.2, label=line.method)
                axes.legend(loc="lower right", fontsize=8)
            axes.set(xlabel=words, ylabel="average HM (%)")
            plain(axes)
            drawn.append((axes, {one.method: (value, one.reached) for one, value in some}))
        figure.draw_without_rendering()  # settles the layout, in which labels then find their places
        for axes, points in drawn:
            place_labels(axes, points)

    words = "; ".join(
        f"{one.method}: HM {one.reached:.1f}"
        + (f", {one.parameters:,.0f} parameters" if one.parameters is not None else "")
        + (f", {one.seconds:,.1f} seconds" if one.seconds is not None else "")
        for one in methods
    )
    data: list[Sequence[object]] = [["method", "average HM (%)", "trained parameters", "seconds per run"]]
    data += [[one.method, one.reached, one.parameters, one.seconds] for one in methods]
    return draw("costs", f"Average HM against costs. {words}.", (4.7 * len(known), 4.0), paint, data)


def place_labels(axes: Axes, points: Mapping[str, tuple[float, float]]) -> list[Annotation]:
    """Name points so that no name covers another, a point or the edge of the axes where that is possible:
    each name takes the nearest free place, further ones with a line that leads to the point. The figure's
    layout must be settled.
    """
    inside = axes.get_window_extent()
    marks = [axes.transData.transform(point) for point in points.values()]
    taken = [Bbox.from_extents(x - 5, y - 5, x + 5, y + 5) for x, y in marks]
    placed = []
    for name, point in sorted(points.items(), key=lambda item: item[1]):
        best: tuple[float, Annotation, Bbox] | None = None
        for away, step in product(AWAY, range(DIRECTIONS)):
            angle = 2 * pi * step / DIRECTIONS
            label = _label(axes, name, point, away, angle)
            box = label.get_window_extent().padded(1.5)
            crossed = sum(_overlap(box, other) for other in taken)
            crossed += box.width * box.height - _overlap(box, inside)
            if best is None or crossed < best[0] - 1e-6:
                if best is not None:
                    best[1].remove()
                best = crossed, label, box
            else:
                label.remove()
            if best[0] <= 1e-6:
                break
        assert best is not None
        taken.append(best[2])
        placed.append(best[1])
    return placed


def _label(axes: Axes, name: str, point: tuple[float, float], away: float, angle: float) -> Annotation:
    x, y = away * cos(angle), away * sin(angle)
    line = {"arrowstyle": "-", "color": INK, "alpha": 0.45, "linewidth": 0.7, "shrinkA": 0, "shrinkB": 3}
    label = axes.annotate(
        name, point, (x, y), textcoords="offset points", fontsize=8,
        ha="left" if x > 1 else "right" if x < -1 else "center",
        va="bottom" if y > 1 else "top" if y < -1 else "center",
        arrowprops=line if away >= AWAY[2] else None,
    )  # fmt: skip
    label.set_in_layout(False)
    return label


def _overlap(one: Bbox, other: Bbox) -> float:
    """The area that two boxes share."""
    shared = Bbox.intersection(one, other)
    return 0.0 if shared is None else shared.width * shared.height


def averages_down(table: Table) -> Drawing | None:
    """The table's averages for many methods: methods down, a panel a measure; None if no method has one."""
    shown = [(m, entry) for m, entry in zip(table.methods, table.average.entries, strict=True) if entry]
    if not shown:
        return None

    def paint(figure: Figure) -> None:
        panels = figure.subplots(1, len(MEASURES), sharey=True)
        for axes, measure in zip(panels, MEASURES, strict=True):
            means = [entry[measure].mean for _, entry in shown]
            spreads = [entry[measure].spread or 0.0 for _, entry in shown]
            best = max(means)
            axes.barh(
                range(len(shown)), means, 0.74, color=[PALETTE[0] if m == best else NEUTRAL for m in means]
            )
            if any(spreads):
                axes.errorbar(
                    means, range(len(shown)), xerr=spreads, fmt="none", ecolor=INK, elinewidth=1, capsize=2
                )
            for at, (mean, spread) in enumerate(zip(means, spreads, strict=True)):
                axes.text(mean + spread + 1.5, at, f"{mean:.1f}", va="center", fontsize=8)
            axes.set_title(SHOWN[measure], fontsize=10)
            axes.set_xlim(0, max(m + s for m, s in zip(means, spreads, strict=True)) * 1.22)
            axes.set_yticks(range(len(shown)), [method for method, _ in shown])
            axes.tick_params(length=0)
            axes.set_xticks([])
            axes.spines[:].set_visible(False)
        panels[0].invert_yaxis()

    words = "; ".join(
        f"{method}: " + ", ".join(f"{SHOWN[measure]} {entry[measure].mean:.1f}" for measure in MEASURES)
        for method, entry in shown
    )
    size = (7.4 + 0.06 * max(len(method) for method, _ in shown), 0.5 + 0.25 * len(shown))
    rows: list[Sequence[object]] = [["method", *(SHOWN[measure] for measure in MEASURES)]]
    rows += [[method, *(entry[measure].mean for measure in MEASURES)] for method, entry in shown]
    return draw("bars", f"Average accuracy in percent. {words}.", size, paint, rows)
