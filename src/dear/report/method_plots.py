"""Figures of methods: averages, the gain over zero-shot by data set, accuracy against costs, few-shot curves,
fusion weights, training.
"""

from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from textwrap import fill

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, LogLocator, MaxNLocator, NullFormatter
from pandas import DataFrame

from dear.report.drawing import (
    HEAT,
    INK,
    NEUTRAL,
    PALETTE,
    Drawing,
    cell_axes,
    concept_styles,
    describe,
    draw_cell,
    drawable,
    legend_below,
    line_style,
    plain_axes,
)
from dear.report.grid import Cell
from dear.report.records import AVERAGE, Record, data_set_title, grouped

ACROSS = 2  # panels beside each other, so that they fit on a phone
PANEL = 20  # marks that take as long to draw as an empty panel, a legend's entry or a label that is placed
POINTS = 20_000
"""Epochs of all curves of a figure: more take seconds to draw, and their numbers megabytes."""
GAIN, LOSS = PALETTE[0], PALETTE[4]
COSTS = {"trained parameters": "parameters", "seconds per run": "seconds"}
NARROW, WIDE = 4.0, 200.0
"""Ratios of costs below which ticks are even numbers, and below which there are several in a decade."""
Shares = Mapping[str, Mapping[str, float]]
"""Data set -> feature -> fusion weight, a fraction."""


def average_bars(averages: Mapping[str, Sequence[Cell | None]]) -> Drawing | None:
    """The base, novel and HM averages of methods: methods down, a panel a measure, the best in color; None if
    there is none.
    """
    if not averages or not drawable(len(averages), 3):
        return None
    by_measure = dict(zip(("Base", "Novel", "HM"), zip(*averages.values(), strict=True), strict=True))

    def paint(figure: Figure) -> None:
        panels, rows = figure.subplots(1, 3, sharey=True), range(len(averages))
        for axes, (title, cells) in zip(panels, by_measure.items(), strict=True):
            means, spreads = [c.mean for c in cells if c], [c.spread or 0.0 for c in cells if c]
            axes.barh(rows, means, 0.74, color=[PALETTE[0] if m == max(means) else NEUTRAL for m in means])
            if any(spreads):
                axes.errorbar(means, rows, xerr=spreads, fmt="none", ecolor=INK, elinewidth=1, capsize=2)
            for row, mean, spread in zip(rows, means, spreads, strict=True):
                axes.text(mean + spread + 1.5, row, f"{mean:.1f}", va="center", fontsize=8)
            axes.set_title(title, fontsize=10)
            axes.set_xlim(0, max(m + s for m, s in zip(means, spreads, strict=True)) * 1.22 + 1)
            axes.set_yticks(rows, [*averages])
            axes.tick_params(length=0)
            axes.set_xticks([])
            axes.spines[:].set_visible(False)
        panels[0].invert_yaxis()

    means = {
        m: {title: cells[at].mean for title, cells in by_measure.items()} for at, m in enumerate(averages)
    }
    size = (4.6 + 0.06 * max(map(len, averages)), 0.6 + 0.25 * len(averages))
    return Drawing("bars", f"Average accuracy in percent. {describe(means)}", size, paint)


def gain_bars(gains: DataFrame, reference: str) -> Drawing | None:
    """A panel a method (columns): its gain in HM over the reference, by data set, all on one scale; None if
    no method has a data set in common with the reference.
    """
    if gains.empty or not drawable(len(gains.columns), max(len(gains), PANEL)):
        return None
    across = min(ACROSS, len(gains.columns))
    down = -(-len(gains.columns) // across)

    def paint(figure: Figure) -> None:
        panels = figure.subplots(down, across, sharex=True, sharey=True, squeeze=False)
        for axes in panels.flat[len(gains.columns) :]:
            axes.set_visible(False)
        for axes, (method, values) in zip(panels.flat, gains.items(), strict=False):
            axes.barh(range(len(gains)), values, 0.72, color=np.where(values >= 0, GAIN, LOSS))
            axes.axvline(0, color=INK, linewidth=0.8)
            axes.set_title(fill(str(method), 22), fontsize=10)
            axes.set_yticks(range(len(gains)), gains.index, fontsize=8)
            axes.tick_params(axis="x", labelsize=8)
            plain_axes(axes, "x")
        panels[0, 0].invert_yaxis()
        figure.supxlabel(f"points of HM over {reference}", fontsize=9)

    words = describe({str(method): values.dropna() for method, values in gains.items()}, "+.1f")
    longest = max(map(len, gains.index))
    size = (0.075 * longest + 1.75 * across + 0.3, down * (0.17 * len(gains) + 0.42) + 0.5)
    return Drawing("gains", f"Gain in HM over {reference} by data set, in points. {words}", size, paint)


def cost_plot(hms: Mapping[str, float], costs: DataFrame, reference: str | None) -> Drawing | None:
    """Average HM against the trained parameters and the seconds of a run that at least two methods have, each
    on a logarithmic scale; the reference is a line where it has no parameters. None if there is neither.
    """
    known = costs.loc[[*hms], [*COSTS.values()]]
    known = known.where(known > 0)
    panels_of = {title: known[name].dropna() for title, name in COSTS.items() if known[name].count() > 1}
    if not panels_of or not drawable(len(hms), PANEL):
        return None
    styles = concept_styles([*hms])

    def paint(figure: Figure) -> None:
        panels = figure.subplots(1, len(panels_of), squeeze=False, sharey=True)[0]
        for axes, (title, of_methods) in zip(panels, panels_of.items(), strict=True):
            cost_scale(axes, [*of_methods])
            axes.margins(0.1, 0.14)
            for method, cost in of_methods.items():
                color, marker = styles[method]
                axes.scatter(cost, hms[method], s=34, color=color, marker=marker, zorder=3, label=method)
            if reference is not None and reference in hms and reference not in of_methods:
                axes.axhline(hms[reference], color=styles[reference][0], linestyle="--", linewidth=1.2)
            axes.set(xlabel=title)
            plain_axes(axes)
        panels[0].set_ylabel("average HM (%)")
        legend_below(figure, 4)

    facts = {m: {"HM": hm} | {n: float(costs.at[m, n]) for n in COSTS.values()} for m, hm in hms.items()}
    size = (4.2 if len(panels_of) == 1 else 5.7, 3.2 + 0.2 * -(-len(hms) // 4))
    return Drawing("costs", f"Average HM against costs. {describe(facts, ',.1f')}", size, paint)


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
    shots = sorted({n for title in titles for curve in curves[title].values() for n in curve if n})
    if not drawable(len(titles), max(len(methods) * len(shots), PANEL)):
        return None
    colored = [m for m in methods if any({*curves[title].get(m, {})} - {0} for title in titles)]
    across = min(ACROSS, len(titles))
    down = -(-len(titles) // across)

    def paint(figure: Figure) -> None:
        for number, title in enumerate(titles, start=1):
            axes = figure.add_subplot(down, across, number)
            for method, curve in curves[title].items():
                if method not in colored:
                    axes.axhline(curve[0].mean, color=NEUTRAL, linestyle="--", linewidth=1.4, label=method)
                    continue
                style = line_style(colored.index(method))
                x = [shots.index(n) for n in shots if n in curve]
                means = np.array([curve[shots[at]].mean for at in x])
                spreads = np.array([curve[shots[at]].spread or 0.0 for at in x])
                axes.plot(x, means, marker="o", markersize=3, linewidth=1.4, label=method, **style)
                if spreads.any():
                    band = {"color": style["color"], "alpha": 0.18, "linewidth": 0}
                    axes.fill_between(x, means - spreads, means + spreads, **band)
            axes.set_xticks(range(len(shots)), [str(n) for n in shots])
            axes.set_title(title, fontsize=10)
            if number > len(titles) - across:
                axes.set_xlabel("images per class")
            plain_axes(axes)
        legend_below(figure, min(len(methods), 4))

    words = describe(
        {
            f"{title}, {method}": {f"{n} shots": cell.mean for n, cell in curve.items()}
            for title, of_methods in curves.items()
            for method, curve in of_methods.items()
        }
    )
    size = (max(2.5 * across, 4.2), 0.4 + 2.1 * down + 0.22 * -(-len(methods) // 4))
    return Drawing(name, f"Accuracy in percent by images per class. {words}", size, paint)


def fusion_heat_map(weights: Shares) -> Drawing | None:
    """Fusion weights in percent: data sets down, features across; the shade is proportional to the root. None
    if there are none.
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

    words = describe({title: {f: 100 * value for f, value in row.items()} for title, row in weights.items()})
    size = (0.5 + 0.085 * max(map(len, weights)) + 0.68 * len(features), 0.6 + 0.36 * len(weights))
    return Drawing("fusion", f"Fusion weights in percent. {words}", size, paint)


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
            legend_below(figure, 3)

    ends = {
        measure: describe({t: {"first": c[0], "last": c[-1]} for t, c in curves.items()}, ".2f")
        for measure, curves in panels.items()
    }
    words = "; ".join(f"{measure}: {text}" for measure, text in ends.items())
    size = (5.7 if percent else 5.2, 2.8 + 0.2 * -(-len(losses) // 3))
    return Drawing(name, f"First and last epoch of the training. {words}", size, paint)


def mean_fusion_weights(records: Iterable[Record]) -> Shares:
    """The fusion weights of runs that have any, averaged over seeds."""
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
