"""Figures of runs (the gain over zero-shot by data set, fusion weights, few-shot curves, training), and the
reliability diagram of `dear eval`.
"""

from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from textwrap import fill

import numpy as np
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from pandas import DataFrame

from dear.evaluation.metrics import Bin, expected_error
from dear.report.drawing import (
    INK,
    NEUTRAL,
    PALETTE,
    Drawing,
    legend_below,
    line_style,
    plain_axes,
)
from dear.report.grid import Cell, Grid
from dear.report.records import AVERAGE, Record, data_set_title, grouped

ACROSS = 2  # panels beside each other, so that they fit on a phone
GAIN, LOSS = PALETTE[0], PALETTE[4]
DARKEST = to_rgb(PALETTE[0])
Curves = Mapping[str, Sequence[float]]
"""Data set title -> a number of each epoch."""


def gain_bars(gains: DataFrame, reference: str) -> Drawing | None:
    """A panel a method (columns): its gain in HM over the reference, by data set, all on one scale; None if
    no method has a data set in common with the reference.
    """
    if gains.empty:
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

    words = "; ".join(
        f"{method}: " + ", ".join(f"{name} {value:+z.1f}" for name, value in values.dropna().items())
        for method, values in gains.items()
    )
    longest = max(map(len, gains.index))
    size = (0.075 * longest + 1.75 * across + 0.3, down * (0.17 * len(gains) + 0.42) + 0.5)
    return Drawing("gains", f"Gain in HM over {reference} by data set, in points. {words}", size, paint)


def fusion_map(grid: Grid) -> Drawing | None:
    """The heat map of a table of fusion weights in percent: data sets down, features across, darker for more;
    None for a single data set. As in the supplement's Figure 2.
    """
    weights = [[0.0 if cell is None else cell.mean for cell in row.cells] for row in grid.rows]
    if len(weights) < 2:
        return None
    most = max(max(row) for row in weights)

    def paint(figure: Figure) -> None:
        axes = figure.add_subplot()
        for y, row in enumerate(weights):
            for x, weight in enumerate(row):
                red, green, blue = (1 - weight / most * (1 - channel) for channel in DARKEST)
                axes.barh(y, 1, 1, left=x - 0.5, color=(red, green, blue))
                text = "#ffffff" if weight > 0.6 * most else "#000000"
                axes.text(x, y, f"{weight:.1f}", ha="center", va="center", fontsize=8, color=text)
        axes.set_xticks(range(len(grid.columns)), grid.columns, fontsize=9)
        axes.set_yticks(range(len(weights)), [row.label for row in grid.rows], fontsize=8)
        axes.set_xlim(-0.5, len(grid.columns) - 0.5)
        axes.set_ylim(len(weights) - 0.5, -0.5)
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)

    heaviest = "; ".join(
        f"{row.label}: {grid.columns[int(np.argmax(of_row))]} {max(of_row):.1f}"
        for row, of_row in zip(grid.rows, weights, strict=True)
    )
    longest = max(len(row.label) for row in grid.rows)
    size = (0.075 * longest + 0.75 * len(grid.columns) + 0.3, 0.24 * len(weights) + 0.5)
    words = f"Fusion weights in percent by data set and feature; the largest of each: {heaviest}."
    return Drawing("fusion", words, size, paint)


def few_shot_plot(name: str, curves: Mapping[str, Mapping[str, Mapping[int, Cell]]]) -> Drawing:
    """Accuracy in percent by shots, of each data set and method; the average first; 0 shots is a horizontal
    line.
    """
    titles = sorted(curves, key=lambda title: title != AVERAGE)
    methods = list(dict.fromkeys(method for title in titles for method in curves[title]))
    shots = sorted({n for title in titles for curve in curves[title].values() for n in curve if n})
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
                style, cells = line_style(colored.index(method)), [curve[n] for n in shots if n in curve]
                x = [shots.index(n) for n in shots if n in curve]
                means = np.array([cell.mean for cell in cells])
                spreads = np.array([cell.spread or 0.0 for cell in cells])
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

    size = (max(2.5 * across, 4.2), 0.4 + 2.1 * down + 0.22 * -(-len(methods) // 4))
    return Drawing(name, "Accuracy by images per class; the table has the numbers.", size, paint)


def training_curves(losses: Curves, validated: Curves, name: str = "training") -> Drawing | None:
    """The mean loss of each epoch (counted from 1), one thin line per data set; beside it the accuracy on
    validation images (a fraction) of the data sets where it was measured. None if there are none.
    """
    percent = {title: [100 * value for value in curve] for title, curve in validated.items()}
    panels = {"loss": losses} | ({"validation accuracy (%)": percent} if percent else {})
    numbers = {title: number for number, title in enumerate({**losses, **percent})}
    if not losses:
        return None

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

    words = "; ".join(f"{title} {curve[0]:.2f} to {curve[-1]:.2f}" for title, curve in losses.items())
    size = (5.7 if percent else 5.2, 2.8 + 0.2 * -(-len(losses) // 3))
    return Drawing(name, f"Mean training loss from the first to the last epoch: {words}.", size, paint)


def mean_curves(records: Iterable[Record], measure: str) -> dict[str, list[float]]:
    """Data set title -> a measure of each epoch ("loss", or "val": accuracy on validation images), averaged
    over seeds, of as many epochs as all have; runs without it are left out.
    """
    curves = [
        (data_set_title(run), [float(epoch[measure]) for epoch in epochs])
        for run in records
        if (epochs := (run.get("train") or {}).get("epochs")) and all(measure in epoch for epoch in epochs)
    ]
    return {
        title: [fmean(of_runs) for of_runs in zip(*(curve for _, curve in runs), strict=False)]
        for title, runs in grouped(curves, lambda curve: curve[0]).items()
    }


def describe_calibration(bins: Sequence[Bin]) -> str:
    """Whether the classifier is too confident or not confident enough, and by how much."""
    images = sum(bin.images for bin in bins)
    confidence = 100 * sum(bin.images * bin.confidence for bin in bins) / images
    accuracy = 100 * sum(bin.images * bin.accuracy for bin in bins) / images
    if f"{confidence:.1f}" == f"{accuracy:.1f}":
        return f"Over all images its mean confidence equals its accuracy, {accuracy:.1f}%."
    side, gap = "overconfident" if confidence > accuracy else "underconfident", abs(confidence - accuracy)
    return (
        f"Over all images it is {side} by {gap:.1f} points: its mean confidence is {confidence:.1f}%, its "
        f"accuracy {accuracy:.1f}%."
    )


def reliability_diagram(bins: Sequence[Bin]) -> Drawing:
    """Accuracy by confidence, in percent, with the diagonal of a calibrated classifier; below, how many
    images each bin has.
    """
    filled = [bin for bin in bins if bin.images]

    def paint(figure: Figure) -> None:
        above, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
        widths = [90 * (bin.high - bin.low) for bin in filled]
        centers = [50 * (bin.low + bin.high) for bin in filled]
        accuracies, confidences = zip(*((100 * b.accuracy, 100 * b.confidence) for b in filled), strict=True)
        above.bar(centers, accuracies, widths, color=PALETTE[0], label="accuracy")
        above.plot(confidences, accuracies, "o", color=PALETTE[1], ms=4, label="at the mean confidence")
        above.plot([0, 100], [0, 100], color=INK, linestyle="--", linewidth=1, label="calibrated")
        above.set(xlim=(0, 100), ylim=(0, 100), ylabel="accuracy (%)")
        below.bar(centers, [bin.images for bin in filled], widths, color=NEUTRAL)
        below.set(xlabel="confidence (%)", ylabel="images")
        below.yaxis.set_major_locator(MaxNLocator(3, integer=True))
        for axes in (above, below):
            plain_axes(axes)
        figure.legend(loc="outside upper center", ncols=3, fontsize=9)

    points = (f"{100 * bin.confidence:.0f}%: {100 * bin.accuracy:.0f}% of {bin.images}" for bin in filled)
    error = f"calibration error {100 * expected_error(bins):.1f}%"
    text = f"Accuracy by confidence, {error}. {'; '.join(points)}."
    return Drawing("reliability", text, (5.2, 4.4), paint)


def risk_coverage_plot(
    confidence: np.ndarray, correct: np.ndarray, threshold: float | None = None
) -> Drawing:
    """The share of wrong images among the surest, by the share of images that these are, both in percent,
    with a mark at the threshold of an operating point.
    """
    order = np.argsort(-confidence, kind="stable")
    ranked, wrong = confidence[order], ~correct[order].astype(bool)
    last = np.append(ranked[1:] != ranked[:-1], True)  # images of the same confidence are decided together
    counts = np.arange(1, len(ranked) + 1)
    coverage, risk = 100 * counts[last] / len(ranked), 100 * np.cumsum(wrong)[last] / counts[last]
    decided = 0 if threshold is None else int((ranked >= threshold).sum())

    def paint(figure: Figure) -> None:
        axes = figure.add_subplot()
        axes.step(coverage, risk, color=PALETTE[0], where="post")
        if decided:
            at = 100 * decided / len(ranked), 100 * float(wrong[:decided].mean())
            axes.plot(*at, "o", color=PALETTE[1], ms=7, label="operating point")
            legend_below(figure, 1)
        axes.set(xlim=(0, 100), xlabel="images that are decided (%)", ylabel="of these wrong (%)")
        axes.set_ylim(0, max(5.0, 1.1 * float(risk.max())))
        plain_axes(axes)

    parts = [max(1, round(share * len(ranked))) for share in (0.25, 0.5, 0.75, 1)]
    points = "; ".join(f"{count / len(ranked):.0%}: {wrong[:count].mean():.1%}" for count in parts)
    text = f"Share of wrong images among the surest, by the share that is decided: {points}."
    return Drawing("risk-coverage", text, (5.2, 3.0), paint)
