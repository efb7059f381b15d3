"""Figures of one method: its fusion weights and its training."""

from collections.abc import Iterable, Mapping, Sequence

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from dear.errors import DataError
from dear.report.drawing import (
    DASHES,
    HEAT,
    PALETTE,
    Drawing,
    cell_axes,
    draw_cell,
    drawable,
    plain_axes,
)
from dear.report.records import Record, data_set, data_set_title, grouped

POINTS = 20_000
"""Epochs of all curves of a figure: more take seconds to draw, and their numbers megabytes."""
PANEL = 20  # marks that take as long to draw as an empty panel or a legend's entry


def fusion_heat_map(weights: Mapping[str, Mapping[str, float]]) -> Drawing | None:
    """Fusion weights in percent: data sets (keys) down, features across; the shade is proportional to the
    root.
    """
    features = list(dict.fromkeys(feature for row in weights.values() for feature in row))
    if not features:
        raise DataError("there are no fusion weights to draw")
    if not drawable(len(features), len(weights)):
        return None

    def paint(figure: Figure) -> None:
        axes = cell_axes(figure, features, list(weights), "", "")
        for y, row in enumerate(weights.values()):
            for x, feature in enumerate(features):
                if (value := row.get(feature)) is not None:
                    # Opaque enough to be visible, light enough for text in the page's colour to be legible.
                    draw_cell(axes, x, y, HEAT, alpha=0.05 + 0.65 * min(max(value, 0.0), 1.0) ** 0.5)
                    axes.text(x, y, f"{100 * value:.1f}", ha="center", va="center")

    words = "; ".join(
        f"{title}: " + ", ".join(f"{feature} {100 * value:.1f}" for feature, value in row.items())
        for title, row in weights.items()
    )
    label_width = 0.5 + 0.085 * max(map(len, weights))
    size = (label_width + 0.68 * len(features), 0.6 + 0.36 * len(weights))

    return Drawing("fusion", f"Fusion weights in percent. {words}.", size, paint)


def training_curves(
    losses: Mapping[str, Sequence[float]], validated: Mapping[str, Sequence[float]] | None = None
) -> Drawing | None:
    """The mean loss of each epoch (counted from 1), one thin line per data set; beside it the accuracy on
    validation images (a fraction) of the data sets where it was measured.
    """
    if not any(losses.values()):
        raise DataError("no run has a training curve to draw")
    if not drawable(len(losses), PANEL) or sum(map(len, losses.values())) > POINTS:
        return None
    panels = {"loss": losses}
    if validated:
        panels["validation accuracy (%)"] = {
            title: [100 * value for value in curve] for title, curve in validated.items()
        }
    numbers = {title: number for number, title in enumerate({**losses, **(validated or {})})}

    def paint(figure: Figure) -> None:
        for axes, (measure, curves) in zip(
            figure.subplots(1, len(panels), squeeze=False)[0], panels.items(), strict=True
        ):
            for title, curve in curves.items():
                number = numbers[title]
                axes.plot(
                    range(1, len(curve) + 1),
                    curve,
                    color=PALETTE[number % (len(PALETTE) - 1)],
                    linestyle=DASHES[number // (len(PALETTE) - 1) % len(DASHES)],
                    linewidth=1.3,
                    marker="o" if len(curve) == 1 else None,
                    label=title,
                )
            axes.set_xlabel("epoch")
            axes.set_ylabel(measure)
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
            plain_axes(axes)
        axes = figure.axes[0]
        axes.set_ylim(bottom=min(0.0, *(min(curve) for curve in losses.values() if curve)))
        handles, labels = axes.get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=3, fontsize=9, handlelength=1.8)

    ends = "; ".join(f"{title} {curve[0]:.2f} to {curve[-1]:.2f}" for title, curve in losses.items() if curve)
    size = (7.6 if len(panels) > 1 else 5.6, 2.8 + 0.2 * -(-len(losses) // 3))

    text = f"Training loss from the first to the last epoch: {ends}."
    return Drawing("training", text, size, paint)


def mean_fusion_weights(records: Iterable[Record]) -> dict[str, dict[str, float]]:
    """Data set title -> feature -> fusion weight (a fraction), averaged over seeds, for runs with any."""
    means = {}
    for runs in grouped(records, data_set).values():
        by_run: list[Mapping[str, float]] = [w for run in runs if (w := run.get("fusion_weights"))]
        if by_run:
            sums: dict[str, float] = {}
            for feature, weight in (item for weights in by_run for item in weights.items()):
                sums[feature] = sums.get(feature, 0.0) + weight
            means[data_set_title(runs[0])] = {feature: total / len(by_run) for feature, total in sums.items()}
    return means


def mean_curves(records: Iterable[Record], measure: str = "loss") -> dict[str, list[float]]:
    """Data set title -> a measure of each epoch ("loss", or "val": accuracy on validation images), averaged
    over seeds; runs without it are left out.
    """
    means = {}
    for runs in grouped(records, data_set).values():
        curves: list[Sequence[Mapping[str, float]]] = [
            epochs
            for run in runs
            if (epochs := (run.get("train") or {}).get("epochs") or [])
            and all(measure in epoch for epoch in epochs)
        ]
        if curves:
            means[data_set_title(runs[0])] = [
                sum(float(epoch[measure]) for epoch in of_runs) / len(curves)
                for of_runs in zip(*curves, strict=False)
            ]
    return means
