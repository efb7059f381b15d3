"""Figures of a role table: the roles of its heads, their concepts and concept entropy, what the heads of each
layer carry, the map of phrases.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from dear.errors import DataError
from dear.report.drawing import (
    INK,
    MARKERS,
    NEUTRAL,
    PALETTE,
    Drawing,
    cell_axes,
    concept_styles,
    draw_cell,
    drawable,
    legend_below,
)
from dear.roles.ablation import LITTLE, Ablated, LayerCurve
from dear.roles.entropy import UNIT

ROLE_COLORS = {"mixed": "#D5D9DE", "other-specialized": "#8A919C", "generalization": "#444B57"}
ROLE_WORDS = {"mixed": "mixed", "other-specialized": "other", "generalization": "general"}
CORE = "#0072B2"
CHEAP = 5  # parts of a bar that are drawn as fast as a cell


def head_role_map(table: Mapping[str, Any]) -> Drawing:
    """The heads of a role table: layers down, the last at the bottom; colored by role or attribute."""
    heads: Sequence[Mapping[str, Any]] = table["heads"]
    if not heads:
        raise DataError("the role table has no heads; there is nothing to draw")
    layers, columns = _layers_and_columns(heads)
    core = [head.get("attribute") for head in heads if head["role"] == "core"]
    attributes = dict.fromkeys(map(str, [*(table.get("attributes") or ()), *core]))
    colors = {name: PALETTE[number % len(PALETTE)] for number, name in enumerate(attributes)}
    width = min(max(4.8 / len(columns), 0.6), 1.2)

    def paint(figure: Figure) -> None:
        axes = cell_axes(figure, [*map(str, columns)], [*map(str, layers)], "head", "layer")
        for head in heads:
            color, word, share = _head_cell(head, colors)
            x, y = int(head["head"]), layers.index(int(head["layer"]))
            draw_cell(axes, x, y, color)
            text: dict[str, Any] = {"ha": "center", "va": "center", "color": _readable_on(color)}
            axes.text(x, y - (0.14 if share else 0), word, fontsize=9 if width > 0.8 else 8, **text)
            axes.text(x, y + 0.22, share, fontsize=8 if width > 0.8 else 7, **text)
        colored_legend(figure, {**colors, **{role: ROLE_COLORS[role] for role in ROLE_COLORS}})

    rows = -(-(len(attributes) + len(ROLE_COLORS)) // 4)
    size = (max(0.9 + width * len(columns), 5.2), 0.8 + 0.56 * len(layers) + 0.24 * rows)
    words = _words(heads, lambda head: head.get("attribute") or head["role"])
    return Drawing("roles", f"Role of each attention head. {words}.", size, paint)


def _layers_and_columns(heads: Sequence[Mapping[str, Any]]) -> tuple[list[int], range]:
    layers = sorted({int(head["layer"]) for head in heads})
    return layers, range(max(int(head["head"]) for head in heads) + 1)


def _words(heads: Sequence[Mapping[str, Any]], word: Callable[[Mapping[str, Any]], Any]) -> str:
    return "; ".join(f"layer {head['layer']} head {head['head']}: {word(head)}" for head in heads)


def _head_cell(head: Mapping[str, Any], colors: Mapping[str, str]) -> tuple[str, str, str]:
    """A head's color, its label, and for a core head the attribute's share, such as "70%", where known."""
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


def concept_map(table: Mapping[str, Any]) -> Drawing | None:
    """Heads as bars of their distribution over concepts: layers down, heads across. None without."""
    heads = [head for head in table["heads"] if head.get("share")]
    order = concept_order(table)
    concepts = [concept for concept in order if any(head["share"].get(concept) for head in heads)]
    if not heads or not drawable(len(heads), -(-len(concepts) // CHEAP)):
        return None
    styles = concept_styles(order)
    looks: dict[str, dict[str, Any]] = {
        c: {
            "facecolor": styles[c][0],
            "hatch": None if styles[c][1] == MARKERS[0] else "////",
            "edgecolor": "white",
        }
        for c in concepts
    }
    layers, columns = _layers_and_columns(heads)

    def paint(figure: Figure) -> None:
        axes = cell_axes(figure, [*map(str, columns)], [*map(str, layers)], "head", "layer")
        for head in heads:
            x, y = int(head["head"]) - 0.45, layers.index(int(head["layer"]))
            for concept in concepts:
                if width := 0.9 * float(head["share"].get(concept, 0)):
                    axes.barh(y, width, 0.6, left=x, linewidth=0.3, **looks[concept])
                    x += width
        keys = {concept: Patch(**looks[concept]) for concept in concepts}
        legend_below(figure, 6, keys, handlelength=1.4)

    words = _words(heads, lambda head: head["concept"])
    size = (max(0.9 + 0.5 * len(columns), 5.2), 0.9 + 0.4 * len(layers) + 0.24 * -(-len(concepts) // 4))
    text = f"Distribution over concepts of each head, by dominant concept. {words}."
    return Drawing("concepts", text, size, paint)


def colored_legend(figure: Figure, colors: Mapping[str, str]) -> None:
    """A legend of colored squares below a figure."""
    keys = {label: Patch(color=color) for label, color in colors.items()}
    legend_below(figure, 4, keys, handlelength=1.1, handleheight=1.0)


def entropy_histogram(table: Mapping[str, Any]) -> Drawing | None:
    """Concept entropies of all heads, colored by role, with the two thresholds where known; None if no head
    has one.
    """
    heads = [head for head in table["heads"] if head.get("entropy") is not None]
    if not heads:
        return None
    values = [float(head["entropy"]) for head in heads]
    edges = np.linspace(0, max(*values, 0.1) * 1.0001, 17)
    thresholds = [float(value) for value in (table.get("evidence") or {}).get("thresholds") or ()]
    colors = {"core": CORE, **ROLE_COLORS}

    def paint(figure: Figure) -> None:
        axes = figure.add_subplot()
        groups = [[v for v, h in zip(values, heads, strict=True) if h["role"] == role] for role in colors]
        axes.hist(groups, edges.tolist(), stacked=True, color=[*colors.values()], rwidth=0.92)
        for threshold in thresholds:
            axes.axvline(threshold, color=INK, linestyle="--", linewidth=1)
        axes.set(xlabel=f"concept entropy ({UNIT})", ylabel="heads")
        axes.spines[["top", "right"]].set_visible(False)
        colored_legend(figure, {ROLE_WORDS.get(role, role): color for role, color in colors.items()})

    bounds = " and ".join(f"{threshold:.2f}" for threshold in thresholds)
    limits = f" Thresholds at {bounds}." if bounds else ""
    text = f"Concept entropy of {len(heads)} heads, {min(values):.2f} to {max(values):.2f} {UNIT}.{limits}"
    return Drawing("entropy", text, (5.6, 3.0), paint)


def ablation_curve(curve: LayerCurve) -> Drawing:
    """What the embedding loses without the heads of each layer, and without those from it on; beside it the
    zero-shot accuracies, if they are known.
    """
    layers = [point.layer for point in curve.layers]
    lines = {
        "without its heads": ([point.alone for point in curve.layers], PALETTE[0], "o"),
        "and without those of later layers": ([point.onwards for point in curve.layers], PALETTE[4], "s"),
    }
    # By its unit: the number of a point, and the dashed line.
    panels: dict[str, tuple[Callable[[Ablated], float], float]] = {
        "lost of the embedding (%)": (lambda point: 100 * point.lost, 100 * LITTLE)
    }
    if curve.whole is not None:
        panels["zero-shot accuracy (%)"] = (lambda point: 100 * (point.accuracy or 0.0), 100 * curve.whole)

    def paint(figure: Figure) -> None:
        all_axes = figure.subplots(1, len(panels), squeeze=False)[0]
        for axes, (unit, (number, dashed)) in zip(all_axes, panels.items(), strict=True):
            for label, (points, color, marker) in lines.items():
                axes.plot(layers, [*map(number, points)], color=color, marker=marker, label=label)
            axes.axhline(dashed, color=NEUTRAL, linestyle="--", linewidth=1)
            for layer in curve.which:
                axes.axvspan(layer - 0.5, layer + 0.5, color=NEUTRAL, alpha=0.15, linewidth=0)
            axes.set_xticks(layers[:: 1 if len(layers) <= 8 else 2])
            axes.set(xlim=(layers[0] - 0.5, layers[-1] + 0.5), xlabel="layer", ylabel=unit)
            axes.set_ylim(bottom=-2)
            axes.spines[["top", "right"]].set_visible(False)
        legend_below(figure, 2)

    words = "; ".join(
        f"layer {point.layer}: {100 * point.alone.lost:.0f}%, with later ones {100 * point.onwards.lost:.0f}%"
        for point in curve.layers
    )
    text = f"Share of the embedding that is lost without the heads of a layer. {words}."
    return Drawing("layers", text, (5.7 if len(panels) > 1 else 5.2, 3.1), paint)


def phrase_map(table: Mapping[str, Any]) -> Drawing | None:
    """Phrases on a plane, colored by concept; the name of each concept is at the median of its phrases. None
    if the table has no map of its phrases.
    """
    points: Sequence[Sequence[Any]] = (table.get("evidence") or {}).get("points") or ()
    if not points:
        return None
    counts = Counter(str(point[2]) for point in points if point[2])
    of_heads = concept_order(table)
    further = [concept for concept in counts if concept not in of_heads]
    concepts = [*(concept for concept in of_heads if concept in counts), *further]
    styles = concept_styles([*of_heads, *further])

    def paint(figure: Figure) -> None:
        axes = figure.add_subplot()
        outside = [point for point in points if not point[2]]
        if outside:
            x, y, *_ = zip(*outside, strict=True)
            axes.scatter(x, y, s=9, color=NEUTRAL, label="unassigned")
        for concept in concepts:
            x, y, *_ = zip(*(point for point in points if point[2] == concept), strict=True)
            color, marker = styles[concept]
            axes.scatter(x, y, s=16, color=color, marker=marker, label=concept, linewidths=0)
            middle = (float(np.median(x)), float(np.median(y)))
            axes.annotate(concept, middle, ha="center", va="center", fontsize=10, fontweight="bold")
        axes.set_axis_off()
        legend_below(figure, 6, handletextpad=0.2, columnspacing=1.0)

    words = ", ".join(f"{concept} {count}" for concept, count in counts.most_common())
    return Drawing("phrases", f"Map of {len(points)} phrases by concept: {words}.", (5.7, 5.0), paint)


def concept_order(table: Mapping[str, Any]) -> list[str]:
    """The core attributes first, which keeps their colors from the map of roles, then concepts by share."""
    total: dict[str, float] = dict.fromkeys(map(str, table.get("attributes") or ()), 0.0)
    core = len(total)
    for head in table["heads"]:
        for concept, share in (head.get("share") or {}).items():
            if share > 0:
                total[concept] = total.get(concept, 0.0) + share
    names = [*total]
    return names[:core] + sorted(names[core:], key=lambda name: -total[name])
