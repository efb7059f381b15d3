"""Figures of methods: averages, the gain over zero-shot by data set, accuracy against costs, few-shot curves,
fusion weights, training.
"""

from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from textwrap import fill
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, LogLocator, MaxNLocator, NullFormatter
from pandas import DataFrame

from dear.report.base_to_novel import MEASURE_TITLES, MEASURES, Entry, Table
from dear.report.drawing import (
    DASHES,
    HEAT,
    INK,
    NEUTRAL,
    PALETTE,
    Drawing,
    cell_axes,
    concept_styles,
    draw_cell,
    drawable,
    plain_axes,
)
from dear.report.grid import Cell
from dear.report.records import AVERAGE, Record, data_set_title, grouped

ACROSS = 4  # panels of gains beside each other
SHOTS_ACROSS = 3  # panels of few-shot curves beside each other
PANEL = 20  # marks that take as long to draw as an empty panel, a legend's entry or a label that is placed
POINTS = 20_000
"""Epochs of all curves of a figure: more take seconds to draw, and their numbers megabytes."""
GAIN, LOSS = PALETTE[0], PALETTE[4]
COSTS = {"trained parameters": "parameters", "seconds per run": "seconds"}
NARROW, WIDE = 4.0, 200.0
"""Ratios of costs below which ticks are even numbers, and below which there are several in a decade."""


def average_bars(averages: Mapping[str, Entry]) -> Drawing | None:
    """The averages of methods: methods down, a panel a measure, the best in color; None if there is none."""
    if not averages or not drawable(len(averages), len(MEASURES)):
        return None

    def paint(figure: Figure) -> None:
        panels = figure.subplots(1, len(MEASURES), sharey=True)
        rows = range(len(averages))
        for axes, measure in zip(panels, MEASURES, strict=True):
            means = [entry[measure].mean for entry in averages.values()]
            spreads = [entry[measure].spread or 0.0 for entry in averages.values()]
            colors = [PALETTE[0] if mean == max(means) else NEUTRAL for mean in means]
            axes.barh(rows, means, 0.74, color=colors)
            if any(spreads):
                axes.errorbar(means, rows, xerr=spreads, fmt="none", ecolor=INK, elinewidth=1, capsize=2)
            for row, mean, spread in zip(rows, means, spreads, strict=True):
                axes.text(mean + spread + 1.5, row, f"{mean:.1f}", va="center", fontsize=8)
            axes.set_title(MEASURE_TITLES[measure], fontsize=10)
            axes.set_xlim(0, max(m + s for m, s in zip(means, spreads, strict=True)) * 1.22 + 1)
            axes.set_yticks(rows, [*averages])
            axes.tick_params(length=0)
            axes.set_xticks([])
            axes.spines[:].set_visible(False)
        panels[0].invert_yaxis()

    words = "; ".join(
        f"{method}: " + ", ".join(f"{MEASURE_TITLES[m]} {entry[m].mean:.1f}" for m in MEASURES)
        for method, entry in averages.items()
    )
    size = (7.4 + 0.06 * max(map(len, averages)), 0.6 + 0.25 * len(averages))
    return Drawing("bars", f"Average accuracy in percent. {words}.", size, paint)


def gains(table: Table, reference: str) -> dict[str, dict[str, float]]:
    """Method -> data set -> HM minus that of the reference, in points, where both have a run."""
    hms = {
        method: {row.title: row.entries[at]["hm"].mean for row in table.rows if row.entries[at]}  # type: ignore[index]
        for at, method in enumerate(table.methods)
    }
    base = hms.pop(reference)
    by_method = {
        method: {title: hm - base[title] for title, hm in of_method.items() if title in base}
        for method, of_method in hms.items()
    }
    return {method: by_title for method, by_title in by_method.items() if by_title}


def gain_bars(table: Table, reference: str) -> Drawing | None:
    """A panel a method: its gain in HM over the reference, by data set, all on one scale; None if no method
    has a data set in common with the reference.
    """
    by_method = gains(table, reference)
    titles = [row.title for row in table.rows if any(row.title in gain for gain in by_method.values())]
    if not by_method or not drawable(len(by_method), max(len(titles), PANEL)):
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
            axes.tick_params(axis="x", labelsize=8)
            plain_axes(axes, "x")
            axes.tick_params(axis="y", length=0)
        for axes in panels.flat[len(by_method) :]:
            axes.set_visible(False)
        panels[0, 0].invert_yaxis()
        figure.supxlabel(f"points of HM over {reference}", fontsize=9)

    words = "; ".join(
        f"{method}: " + ", ".join(f"{title} {value:+.1f}" for title, value in by_title.items())
        for method, by_title in by_method.items()
    )
    size = (0.075 * max(map(len, titles)) + 1.75 * across + 0.3, down * (0.17 * len(titles) + 0.42) + 0.5)
    return Drawing("gains", f"Gain in HM over {reference} by data set, in points. {words}.", size, paint)


def costs_compared(
    averages: Mapping[str, Entry], costs: DataFrame
) -> dict[str, dict[str, tuple[float, float]]]:
    """The costs that at least two methods with an average have, by what they are: method -> cost and average
    HM.
    """
    points_of = {
        title: {
            method: (float(costs.loc[method, name]), entry["hm"].mean)
            for method, entry in averages.items()
            if costs.loc[method, name] > 0
        }
        for title, name in COSTS.items()
    }
    return {title: points for title, points in points_of.items() if len(points) > 1}


def cost_plot(averages: Mapping[str, Entry], costs: DataFrame, reference: str | None) -> Drawing | None:
    """Average HM against trained parameters and seconds of a run, each on a logarithmic scale; the
    reference is a line where it has no parameters. None for fewer than two methods with a cost.
    """
    points_of = costs_compared(averages, costs)
    if not points_of or not drawable(len(averages), PANEL):
        return None

    styles = concept_styles([*averages])

    def paint(figure: Figure) -> None:
        panels = figure.subplots(1, len(points_of), squeeze=False)[0]
        handles: dict[str, Any] = {}
        for axes, (title, points) in zip(panels, points_of.items(), strict=True):
            cost_scale(axes, [cost for cost, _ in points.values()])
            axes.margins(0.1, 0.14)
            for method, (cost, hm) in points.items():
                color, marker = styles[method]
                handles[method] = axes.scatter(cost, hm, s=34, color=color, marker=marker, zorder=3)
            if reference and reference in averages and reference not in points:
                hm = averages[reference]["hm"].mean
                axes.axhline(hm, color=styles[reference][0], linestyle="--", linewidth=1.2)
            axes.set(xlabel=title, ylabel="average HM (%)")
            plain_axes(axes)
        figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=5, fontsize=9)

    def said(cost: float, decimals: int, name: str) -> str:
        return "" if cost != cost else f", {cost:,.{decimals}f} {name}"

    words = "; ".join(
        f"{method}: HM {entry['hm'].mean:.1f}"
        + said(costs.parameters[method], 0, "parameters")
        + said(costs.seconds[method], 1, "seconds")
        for method, entry in averages.items()
    )
    size = (5.4 if len(points_of) == 1 else 9.4, 3.6 + 0.2 * -(-len(averages) // 5))
    return Drawing("costs", f"Average HM against costs. {words}.", size, paint)


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


def few_shot_plot(name: str, curves: Mapping[str, Mapping[str, Mapping[int, Cell]]]) -> Drawing | None:
    """Accuracy in percent by shots, of each data set and method; the average first; 0 shots is a horizontal
    line.
    """
    titles = sorted(curves, key=lambda title: title != AVERAGE)
    methods = list(dict.fromkeys(method for title in titles for method in curves[title]))
    shots_of_all = {n for title in titles for curve in curves[title].values() for n in curve}
    if not drawable(len(titles), max(len(methods) * len(shots_of_all), PANEL)):
        return None
    colored = [m for m in methods if any(set(curves[title].get(m, {})) - {0} for title in titles)]
    down = -(-len(titles) // SHOTS_ACROSS)

    def paint(figure: Figure) -> None:
        for number, title in enumerate(titles, start=1):
            axes = figure.add_subplot(down, SHOTS_ACROSS, number)
            shots = sorted({n for curve in curves[title].values() for n in curve if n})
            for method, curve in curves[title].items():
                if method not in colored:
                    axes.axhline(curve[0].mean, color=NEUTRAL, linestyle="--", linewidth=1.4, label=method)
                    continue
                style = line_style(colored.index(method))
                measured = [n for n in shots if n in curve]
                x = [shots.index(n) for n in measured]
                means = np.array([curve[n].mean for n in measured])
                axes.plot(x, means, marker="o", markersize=3, linewidth=1.4, label=method, **style)
                spreads = np.array([curve[n].spread or 0.0 for n in measured])
                if spreads.any():
                    band = {"color": style["color"], "alpha": 0.18, "linewidth": 0}
                    axes.fill_between(x, means - spreads, means + spreads, **band)
            axes.set_xticks(range(len(shots)), [str(n) for n in shots])
            axes.set_title(title, fontsize=10)
            if number > len(titles) - SHOTS_ACROSS:
                axes.set_xlabel("images per class")
            plain_axes(axes)
        handles = {
            label: handle
            for axes in figure.axes
            for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
        }
        columns = min(len(methods), 4)
        figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=columns)

    words = "; ".join(
        f"{title}: " + ", ".join(
            f"{method} " + " ".join(f"{n} shots {cell.mean:.1f}" for n, cell in curve.items())
            for method, curve in curves[title].items()
        )
        for title in titles
    )  # fmt: skip
    size = (7.6, 0.4 + 2.1 * down + 0.22 * -(-len(methods) // 4))
    return Drawing(name, f"Accuracy in percent by images per class. {words}.", size, paint)


def line_style(number: int, colors: int = len(PALETTE)) -> dict[str, Any]:
    """The color and dashes of a line."""
    return {"color": PALETTE[number % colors], "linestyle": DASHES[number // colors % len(DASHES)]}


def fusion_heat_map(weights: Mapping[str, Mapping[str, float]]) -> Drawing | None:
    """Fusion weights in percent: data sets (keys) down, features across; the shade is proportional to the
    root. None if there are none.
    """
    features = list(dict.fromkeys(feature for row in weights.values() for feature in row))
    if not features or not drawable(len(features), len(weights)):
        return None

    def paint(figure: Figure) -> None:
        axes = cell_axes(figure, features, list(weights), "", "")
        for y, row in enumerate(weights.values()):
            for x, feature in enumerate(features):
                if (value := row.get(feature)) is not None:
                    # Opaque enough to be visible, light enough for text in the page's color to be legible.
                    draw_cell(axes, x, y, HEAT, alpha=0.05 + 0.65 * min(max(value, 0.0), 1.0) ** 0.5)
                    axes.text(x, y, f"{100 * value:.1f}", ha="center", va="center")

    words = "; ".join(
        f"{title}: " + ", ".join(f"{feature} {100 * value:.1f}" for feature, value in row.items())
        for title, row in weights.items()
    )
    size = (0.5 + 0.085 * max(map(len, weights)) + 0.68 * len(features), 0.6 + 0.36 * len(weights))
    return Drawing("fusion", f"Fusion weights in percent. {words}.", size, paint)


def training_curves(
    losses: Mapping[str, Sequence[float]],
    validated: Mapping[str, Sequence[float]] | None = None,
    name: str = "training",
) -> Drawing | None:
    """The mean loss of each epoch (counted from 1), one thin line per data set; beside it the accuracy on
    validation images (a fraction) of the data sets where it was measured. None if there are none.
    """
    losses, validated = ({t: c for t, c in (curves or {}).items() if c} for curves in (losses, validated))
    if not losses or not drawable(len(losses), PANEL) or sum(map(len, losses.values())) > POINTS:
        return None
    percent = {title: [100 * value for value in curve] for title, curve in validated.items()}
    panels = {"loss": losses} | ({"validation accuracy (%)": percent} if percent else {})
    numbers = {title: number for number, title in enumerate({**losses, **percent})}

    def paint(figure: Figure) -> None:
        all_axes = figure.subplots(1, len(panels), squeeze=False)[0]
        for axes, (measure, curves) in zip(all_axes, panels.items(), strict=True):
            for title, curve in curves.items():
                style = line_style(numbers[title], len(PALETTE) - 1) | {"label": title, "linewidth": 1.3}
                axes.plot(range(1, len(curve) + 1), curve, marker="o" if len(curve) == 1 else None, **style)
            axes.set(xlabel="epoch", ylabel=measure)
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
            plain_axes(axes)
        all_axes[0].set_ylim(bottom=min(0.0, *(min(curve) for curve in losses.values())))
        if any(numbers):
            handles, labels = all_axes[0].get_legend_handles_labels()
            figure.legend(handles, labels, loc="outside lower center", ncols=3, fontsize=9, handlelength=1.8)

    def ends(curves: Mapping[str, Sequence[float]], unit: str) -> str:
        return "; ".join(f"{t} {c[0]:.2f} to {c[-1]:.2f}{unit}".strip() for t, c in curves.items())

    words = f"Training loss from the first to the last epoch: {ends(losses, '')}."
    words += f" Validation accuracy: {ends(percent, '%')}." * bool(percent)
    size = (7.6 if percent else 5.6, 2.8 + 0.2 * -(-len(losses) // 3))
    return Drawing(name, words, size, paint)


def mean_fusion_weights(records: Iterable[Record]) -> dict[str, dict[str, float]]:
    """Data set title -> feature -> fusion weight (a fraction), averaged over seeds, for runs with any."""
    with_weights = [record for record in records if record.get("fusion_weights")]
    return {
        title: DataFrame([run["fusion_weights"] for run in runs]).fillna(0).apply(fmean).to_dict()
        for title, runs in grouped(with_weights, data_set_title).items()
    }


def mean_curves(records: Iterable[Record], measure: str = "loss") -> dict[str, list[float]]:
    """Data set title -> a measure of each epoch ("loss", or "val": accuracy on validation images), averaged
    over seeds, of as many epochs as all have; runs without it are left out.
    """
    curves = [
        (data_set_title(run), [float(epoch[measure]) for epoch in epochs])
        for run in records
        if (epochs := (run.get("train") or {}).get("epochs")) and all(measure in epoch for epoch in epochs)
    ]
    by_title = grouped(curves, lambda curve: curve[0])
    return {
        title: [fmean(of_runs) for of_runs in zip(*(curve for _, curve in runs), strict=False)]
        for title, runs in by_title.items()
    }
