"""What the figures of the report share, and those of a method: its fusion weights, its training."""

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch
from matplotlib.ticker import MaxNLocator

from dear.errors import DataError
from dear.report.svg import INK, Drawing

# Okabe and Ito's palette, suited to colour-blind readers; yellow, hard to see on white, comes last.
PALETTE = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9", "#F0E442")
NEUTRAL = "#8A919C"
HEAT = "#2F86D1"
DASHES = ("-", "--", ":", "-.")
MARKERS = ("o", "s", "^", "D", "P")


def concept_styles(concepts: Sequence[str]) -> dict[str, tuple[str, str]]:
    """A colour and a marker for each concept; the pairs are distinct for up to 35 concepts."""
    return {
        concept: (PALETTE[number % len(PALETTE)], MARKERS[number // len(PALETTE) % len(MARKERS)])
        for number, concept in enumerate(concepts)
    }


def plain_axes(axes: Axes) -> None:
    """Axes without a frame, with faint horizontal grid lines."""
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="y", color=INK, alpha=0.15, linewidth=0.8)
    axes.set_axisbelow(True)


def cell_axes(figure: Figure, columns: Sequence[str], rows: Sequence[str], across: str, down: str) -> Axes:
    """Empty axes for cells at integer positions, the first row on top, column names above."""
    axes = figure.add_subplot()
    axes.set_xlim(-0.5, len(columns) - 0.5)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_xticks(range(len(columns)), columns)
    axes.set_yticks(range(len(rows)), rows)
    axes.xaxis.tick_top()
    axes.xaxis.set_label_position("top")
    axes.set_xlabel(across)
    axes.set_ylabel(down)
    axes.tick_params(length=0)
    for spine in axes.spines.values():
        spine.set_visible(False)
    return axes


def draw_cell(axes: Axes, x: float, y: float, color: str, alpha: float = 1.0) -> None:
    """A rounded cell of `cell_axes`."""
    shape = "round,pad=0,rounding_size=0.06"
    box = FancyBboxPatch((x - 0.475, y - 0.46), 0.95, 0.92, shape, facecolor=color, alpha=alpha, linewidth=0)
    axes.add_patch(box)


def fusion_heat_map(weights: Mapping[str, Mapping[str, float]]) -> Drawing:
    """Fusion weights in percent: data sets (keys) down, features across; the shade is proportional to the
    root.
    """
    features = list(dict.fromkeys(feature for row in weights.values() for feature in row))
    if not features:
        raise DataError("there are no fusion weights to draw")

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
    rows: list[list[object]] = [["data set", "feature", "weight"]]
    rows += [[title, feature, value] for title, row in weights.items() for feature, value in row.items()]
    return Drawing("fusion", f"Fusion weights in percent. {words}.", size, paint, rows)


def training_curves(
    losses: Mapping[str, Sequence[float]], validated: Mapping[str, Sequence[float]] | None = None
) -> Drawing:
    """The mean loss of each epoch (counted from 1), one thin line per data set; beside it the accuracy on
    validation images (a fraction) of the data sets where it was measured.
    """
    if not any(losses.values()):
        raise DataError("no run has a training curve to draw")
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
    rows: list[list[object]] = [["measure", "data set", "epoch", "value"]]
    rows += [
        [measure, title, epoch, value]
        for measure, curves in panels.items()
        for title, curve in curves.items()
        for epoch, value in enumerate(curve, start=1)
    ]
    text = f"Training loss from the first to the last epoch: {ends}."
    return Drawing("training", text, size, paint, rows)
