"""The figures as SVG: fusion weights, head roles, training curves, accuracy by method and by shots."""

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch, Patch
from matplotlib.ticker import MaxNLocator

from dear.errors import DataError
from dear.report.grid import Cell
from dear.report.svg import INK, Drawing, draw
from dear.report.tables import MEASURES, SHOWN, Table

# Okabe and Ito's palette, suited to colour-blind readers; yellow, hard to see on white, comes last.
PALETTE = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9", "#F0E442")
NEUTRAL = "#8A919C"
DASHES = ("-", "--", ":", "-.")
ROLE_COLORS = {"mixed": "#D5D9DE", "other-specialized": "#8A919C", "generalization": "#444B57"}
ROLE_WORDS = {"mixed": "mixed", "other-specialized": "other", "generalization": "general"}
HEAT = "#2F86D1"
ACROSS = 3

AVERAGE = "Average"
Curves = Mapping[str, Mapping[str, Mapping[int, Cell]]]
"""Data set title (the average last) -> method -> shots -> accuracy."""


def fusion_heat_map(weights: Mapping[str, Mapping[str, float]]) -> Drawing:
    """Fusion weights in percent: data sets (keys) down, features across; the shade is proportional to the
    root.
    """
    features = list(dict.fromkeys(feature for row in weights.values() for feature in row))
    if not features:
        raise DataError("there are no fusion weights to draw")

    def paint(figure: Figure) -> None:
        axes = _grid(figure, features, list(weights), "", "")
        for y, row in enumerate(weights.values()):
            for x, feature in enumerate(features):
                if (value := row.get(feature)) is not None:
                    # Opaque enough to be visible, light enough for text in the page's colour to be legible.
                    _cell(axes, x, y, HEAT, alpha=0.05 + 0.65 * min(max(value, 0.0), 1.0) ** 0.5)
                    axes.text(x, y, f"{100 * value:.1f}", ha="center", va="center")

    size = (_label_width(weights) + 0.68 * len(features), 0.6 + 0.36 * len(weights))
    rows: list[Sequence[object]] = [["data set", "feature", "weight"]]
    rows += [[title, feature, value] for title, row in weights.items() for feature, value in row.items()]
    return draw("fusion", _fusion_words(weights), size, paint, rows)


def head_role_map(table: Mapping[str, Any]) -> Drawing:
    """The heads of a role table: layers down, the last at the bottom; coloured by role or attribute."""
    heads: Sequence[Mapping[str, Any]] = table["heads"]
    if not heads:
        raise DataError("the role table has no heads; there is nothing to draw")
    layers = sorted({int(head["layer"]) for head in heads})
    columns = range(max(int(head["head"]) for head in heads) + 1)
    core = [head.get("attribute") for head in heads if head["role"] == "core"]
    attributes = list(
        dict.fromkeys(str(attribute) for attribute in [*(table.get("attributes") or ()), *core])
    )
    colors = {attribute: PALETTE[at % len(PALETTE)] for at, attribute in enumerate(attributes)}
    width = min(max(7.0 / len(columns), 0.66), 1.2)

    def paint(figure: Figure) -> None:
        axes = _grid(
            figure, [str(head) for head in columns], [str(layer) for layer in layers], "head", "layer"
        )
        for head in heads:
            color, word, share = _head_look(head, colors)
            x, y = int(head["head"]), layers.index(int(head["layer"]))
            _cell(axes, x, y, color)
            text: dict[str, Any] = {"ha": "center", "va": "center", "color": _readable_on(color)}
            axes.text(x, y - (0.14 if share else 0), word, fontsize=9 if width > 0.8 else 8, **text)
            if share:
                axes.text(x, y + 0.22, share, fontsize=8 if width > 0.8 else 7, **text)
        keys = [Patch(color=color, label=attribute) for attribute, color in colors.items()]
        keys += [Patch(color=ROLE_COLORS[role], label=role) for role in ROLE_COLORS]
        figure.legend(handles=keys, loc="outside lower center", ncols=4, handlelength=1.1, handleheight=1.0)

    rows = -(-(len(attributes) + len(ROLE_COLORS)) // 4)
    size = (max(0.9 + width * len(columns), 5.2), 0.8 + 0.56 * len(layers) + 0.24 * rows)
    data: list[Sequence[object]] = [["layer", "head", "role", "attribute"]]
    data += [[head["layer"], head["head"], head["role"], head.get("attribute") or ""] for head in heads]
    return draw("roles", _role_words(heads), size, paint, data)


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
    numbers = {title: at for at, title in enumerate({**losses, **(validated or {})})}

    def paint(figure: Figure) -> None:
        for axes, (words, curves) in zip(
            figure.subplots(1, len(panels), squeeze=False)[0], panels.items(), strict=True
        ):
            for title, curve in curves.items():
                at = numbers[title]
                axes.plot(
                    range(1, len(curve) + 1),
                    curve,
                    color=PALETTE[at % (len(PALETTE) - 1)],
                    linestyle=DASHES[at // (len(PALETTE) - 1) % len(DASHES)],
                    linewidth=1.3,
                    marker="o" if len(curve) == 1 else None,
                    label=title,
                )
            axes.set_xlabel("epoch")
            axes.set_ylabel(words)
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
            plain(axes)
        axes = figure.axes[0]
        axes.set_ylim(bottom=min(0.0, *(min(curve) for curve in losses.values() if curve)))
        handles, labels = axes.get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=3, fontsize=9, handlelength=1.8)

    ends = "; ".join(f"{title} {curve[0]:.2f} to {curve[-1]:.2f}" for title, curve in losses.items() if curve)
    size = (7.6 if len(panels) > 1 else 5.6, 2.8 + 0.2 * -(-len(losses) // 3))
    rows: list[Sequence[object]] = [["measure", "data set", "epoch", "value"]]
    rows += [
        [words, title, epoch, value]
        for words, curves in panels.items()
        for title, curve in curves.items()
        for epoch, value in enumerate(curve, start=1)
    ]
    text = f"Training loss from the first to the last epoch: {ends}."
    return draw("training", text, size, paint, rows)


def accuracy_bars(table: Table) -> Drawing:
    """The table's averages as bars, in percent: one bar per method, with deviations where known."""
    shown = [(m, entry) for m, entry in zip(table.methods, table.average.entries, strict=True) if entry]
    if not shown:
        raise DataError("no method has results on every data set, so there is no average to draw")
    colors = [NEUTRAL, *PALETTE]

    def paint(figure: Figure) -> None:
        axes = figure.add_subplot()
        width = 0.8 / len(shown)
        for at, (method, entry) in enumerate(shown):
            places = [group - 0.4 + width * (at + 0.5) for group in range(len(MEASURES))]
            means = [entry[measure].mean for measure in MEASURES]
            spreads = [entry[measure].spread or 0.0 for measure in MEASURES]
            axes.bar(places, means, width * 0.9, color=colors[at % len(colors)], label=method)
            if any(spreads):
                axes.errorbar(places, means, spreads, fmt="none", ecolor=INK, elinewidth=1, capsize=2)
            for place, mean, spread in zip(places, means, spreads, strict=True):
                label_size = 9 if len(shown) < 5 else 7.5
                axes.text(
                    place, mean + spread + 1, f"{mean:.1f}", ha="center", va="bottom", fontsize=label_size
                )
        axes.set_xticks(range(len(MEASURES)), [SHOWN[measure] for measure in MEASURES])
        axes.set_ylabel("average accuracy (%)")
        top = max(
            entry[measure].mean + (entry[measure].spread or 0) for _, entry in shown for measure in MEASURES
        )
        axes.set_ylim(0, top * 1.12 + 1)
        plain(axes)
        axes.tick_params(axis="x", length=0)
        figure.legend(
            loc="outside upper center", ncols=min(len(shown), 4), handlelength=1.1, handleheight=1.0
        )

    words = "; ".join(
        f"{method}: " + ", ".join(f"{SHOWN[measure]} {entry[measure].mean:.1f}" for measure in MEASURES)
        for method, entry in shown
    )
    rows: list[Sequence[object]] = [["method", *(SHOWN[measure] for measure in MEASURES)]]
    rows += [[method, *(entry[measure].mean for measure in MEASURES)] for method, entry in shown]
    size = (min(4.4 + 0.5 * len(shown), 7.2), 3.2)
    return draw("bars", f"Average accuracy in percent. {words}.", size, paint, rows)


def _grid(figure: Figure, columns: Sequence[str], rows: Sequence[str], across: str, down: str) -> Axes:
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


def _cell(axes: Axes, x: float, y: float, color: str, alpha: float = 1.0) -> None:
    shape = "round,pad=0,rounding_size=0.06"
    box = FancyBboxPatch((x - 0.475, y - 0.46), 0.95, 0.92, shape, facecolor=color, alpha=alpha, linewidth=0)
    axes.add_patch(box)


def plain(axes: Axes) -> None:
    """Axes without a frame, with faint horizontal grid lines."""
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="y", color=INK, alpha=0.15, linewidth=0.8)
    axes.set_axisbelow(True)


def _label_width(labels: Mapping[str, object]) -> float:
    return 0.5 + 0.085 * max(len(label) for label in labels)


def _head_look(head: Mapping[str, Any], colors: Mapping[str, str]) -> tuple[str, str, str]:
    """A head's colour, its label, and for a core head the attribute's share, such as "70%", where known."""
    attribute, role = str(head.get("attribute")), str(head["role"])
    if role == "core" and attribute in colors:
        share = (head.get("share") or {}).get(attribute)
        return colors[attribute], attribute, "" if share is None else f"{100 * share:.0f}%"
    if role not in ROLE_COLORS:
        raise DataError(f"layer {head['layer']}, head {head['head']} has the unknown role {role!r}")
    concept = str(head.get("concept") or "")
    word = concept.lower() if role == "other-specialized" and 0 < len(concept) < 10 else ROLE_WORDS[role]
    return ROLE_COLORS[role], word, ""


def _readable_on(color: str) -> str:
    """Black or white, whichever has more contrast (WCAG's relative luminance)."""
    channels = [
        value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4 for value in to_rgb(color)
    ]
    luminance = 0.2126 * channels[0] + 0.7152 * channels[1] + 0.0722 * channels[2]
    return "#111111" if (luminance + 0.05) / 0.056 > 1.05 / (luminance + 0.05) else "#FFFFFF"


def _fusion_words(weights: Mapping[str, Mapping[str, float]]) -> str:
    rows = "; ".join(
        f"{title}: " + ", ".join(f"{feature} {100 * value:.1f}" for feature, value in row.items())
        for title, row in weights.items()
    )
    return f"Fusion weights in percent. {rows}."


def _role_words(heads: Sequence[Mapping[str, Any]]) -> str:
    words = "; ".join(
        f"layer {head['layer']} head {head['head']}: {head.get('attribute') or head['role']}"
        for head in heads
    )
    return f"Role of each attention head. {words}."


def few_shot_plot(curves: Curves) -> Drawing:
    """Accuracy in percent by shots, the average first; 0 shots is a horizontal line. Raises DataError if
    there is no curve.
    """
    titles = sorted(curves, key=lambda title: title != AVERAGE)
    if not titles:
        raise DataError("there is no few-shot run to draw")
    methods = list(dict.fromkeys(method for title in titles for method in curves[title]))
    colored = [m for m in methods if any(set(curves[title].get(m, {})) - {0} for title in titles)]
    down = -(-len(titles) // ACROSS)

    def paint(figure: Figure) -> None:
        for at, title in enumerate(titles, start=1):
            axes = figure.add_subplot(down, ACROSS, at)
            shots = sorted({n for curve in curves[title].values() for n in curve if n})
            for method, curve in curves[title].items():
                look: dict[str, Any] = {"label": method, "linewidth": 1.4}
                if method not in colored:
                    axes.axhline(curve[0].mean, color=NEUTRAL, linestyle="--", **look)
                    continue
                number = colored.index(method)
                look["color"] = PALETTE[number % len(PALETTE)]
                known = [n for n in shots if n in curve]
                style = DASHES[number // len(PALETTE) % len(DASHES)]
                places, means = [shots.index(n) for n in known], [curve[n].mean for n in known]
                axes.plot(places, means, marker="o", markersize=3, linestyle=style, **look)
                spreads = [curve[n].spread or 0.0 for n in known]
                if any(spreads):
                    low, high = (
                        [m + sign * s for m, s in zip(means, spreads, strict=True)] for sign in (-1, 1)
                    )
                    axes.fill_between(places, low, high, color=look["color"], alpha=0.18, linewidth=0)
            axes.set_xticks(range(len(shots)), [str(n) for n in shots])
            axes.set_title(title, fontsize=10)
            if at > len(titles) - ACROSS:
                axes.set_xlabel("images per class")
            plain(axes)
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
    rows: list[Sequence[object]] = [["data set", "method", "images per class", "accuracy (%)", "±"]]
    rows += [
        [title, method, n, cell.mean, "" if cell.spread is None else cell.spread]
        for title in titles
        for method, curve in curves[title].items()
        for n, cell in curve.items()
    ]
    text = f"Accuracy in percent by images per class. {words}."
    size = (7.6, 0.4 + 2.1 * down + 0.22 * -(-len(methods) // 4))
    return draw("few-shot", text, size, paint, rows)
