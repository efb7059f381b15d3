"""Figures of a role table: the roles of its heads, their concepts and concept entropy, what the heads of each
layer carry, the map of phrases.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
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
    layers = sorted({int(head["layer"]) for head in heads})
    columns = range(max(int(head["head"]) for head in heads) + 1)
    core = [head.get("attribute") for head in heads if head["role"] == "core"]
    attributes = dict.fromkeys(map(str, [*(table.get("attributes") or ()), *core]))
    colors = {name: PALETTE[number % len(PALETTE)] for number, name in enumerate(attributes)}
    width = min(max(7.0 / len(columns), 0.66), 1.2)

    def paint(figure: Figure) -> None:
        axes = cell_axes(figure, [*map(str, columns)], [*map(str, layers)], "head", "layer")
        for head in heads:
            color, word, share = _head_cell(head, colors)
            x, y = int(head["head"]), layers.index(int(head["layer"]))
            draw_cell(axes, x, y, color)
            text: dict[str, Any] = {"ha": "center", "va": "center", "color": _readable_on(color)}
            axes.text(x, y - (0.14 if share else 0), word, fontsize=9 if width > 0.8 else 8, **text)
            if share:
                axes.text(x, y + 0.22, share, fontsize=8 if width > 0.8 else 7, **text)
        keys = [Patch(color=color, label=attribute) for attribute, color in colors.items()]
        keys += [Patch(color=ROLE_COLORS[role], label=role) for role in ROLE_COLORS]
        figure.legend(handles=keys, loc="outside lower center", ncols=4, handlelength=1.1, handleheight=1.0)

    rows = -(-(len(attributes) + len(ROLE_COLORS)) // 4)
    size = (max(0.9 + width * len(columns), 5.2), 0.8 + 0.56 * len(layers) + 0.24 * rows)

    return Drawing("roles", _role_words(heads), size, paint)


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


def _role_words(heads: Sequence[Mapping[str, Any]]) -> str:
    words = "; ".join(
        f"layer {head['layer']} head {head['head']}: {head.get('attribute') or head['role']}"
        for head in heads
    )
    return f"Role of each attention head. {words}."


def concept_map(table: Mapping[str, Any]) -> Drawing | None:
    """Heads as bars of their distribution over concepts: layers down, heads across. None without."""
    heads = [head for head in table["heads"] if head.get("share")]
    if not heads:
        return None
    order = concept_order(table)
    styles = concept_styles(order)
    colors = {concept: color for concept, (color, _) in styles.items()}
    hatches = {concept: None if marker == MARKERS[0] else "////" for concept, (_, marker) in styles.items()}
    concepts = [concept for concept in order if any(head["share"].get(concept) for head in heads)]
    if not drawable(len(heads), -(-len(concepts) // CHEAP)):
        return None
    layers = sorted({int(head["layer"]) for head in heads})
    columns = range(max(int(head["head"]) for head in heads) + 1)

    def paint(figure: Figure) -> None:
        axes = figure.add_subplot()
        for head in heads:
            x, y = int(head["head"]) - 0.45, layers.index(int(head["layer"]))
            for concept in concepts:
                width = 0.9 * float(head["share"].get(concept, 0))
                if width:
                    axes.barh(
                        y, width, 0.6, left=x, color=colors[concept], hatch=hatches[concept],
                        edgecolor="white", linewidth=0.3,
                    )  # fmt: skip
                    x += width
        axes.set_xlim(-0.6, len(columns) - 0.4)
        axes.set_ylim(len(layers) - 0.5, -0.5)
        axes.set_xticks(list(columns))
        axes.set_yticks(range(len(layers)), [str(layer) for layer in layers])
        axes.set_xlabel("head")
        axes.set_ylabel("layer")
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
        keys = [
            Patch(facecolor=colors[concept], edgecolor="white", hatch=hatches[concept], label=concept)
            for concept in concepts
        ]
        figure.legend(handles=keys, loc="outside lower center", ncols=6, handlelength=1.4, fontsize=9)

    words = "; ".join(f"layer {h['layer']} head {h['head']}: {h['concept']}" for h in heads)
    size = (max(0.9 + 0.62 * len(columns), 5.6), 0.9 + 0.4 * len(layers) + 0.24 * -(-len(concepts) // 6))
    text = f"Distribution over concepts of each head, by dominant concept. {words}."
    return Drawing("concepts", text, size, paint)


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
    words = {"core": "core", **ROLE_WORDS}

    def paint(figure: Figure) -> None:
        axes = figure.add_subplot()
        groups = [[v for v, h in zip(values, heads, strict=True) if h["role"] == role] for role in colors]
        style: dict[str, Any] = {"color": [*colors.values()], "label": [*words.values()], "rwidth": 0.92}
        axes.hist(groups, edges.tolist(), stacked=True, **style)
        for threshold in thresholds:
            axes.axvline(threshold, color=INK, linestyle="--", linewidth=1)
        axes.set_xlabel(f"concept entropy ({UNIT})")
        axes.set_ylabel("heads")
        axes.spines[["top", "right"]].set_visible(False)
        figure.legend(loc="outside upper center", ncols=4, handlelength=1.1, handleheight=1.0)

    bounds = " and ".join(f"{threshold:.2f}" for threshold in thresholds)
    limits = f" Thresholds at {bounds}." if bounds else ""
    text = f"Concept entropy of {len(heads)} heads, {min(values):.2f} to {max(values):.2f} {UNIT}.{limits}"
    return Drawing("entropy", text, (5.6, 3.0), paint)


def ablation_curve(curve: LayerCurve) -> Drawing:
    """What the embedding loses without the heads of each layer, and without those from it on; beside it the
    zero-shot accuracies, if they are known.
    """
    layers = [point.layer for point in curve.layers]
    has_accuracy = curve.whole is not None
    lines: list[tuple[list[Ablated], str, str, str]] = [
        ([point.alone for point in curve.layers], PALETTE[0], "o", "without its heads"),
        (
            [point.onwards for point in curve.layers],
            PALETTE[4], "s", "without its heads and those of all later layers",
        ),
    ]  # fmt: skip

    def paint(figure: Figure) -> None:
        panels = figure.subplots(1, 2 if has_accuracy else 1, squeeze=False)[0]
        for points, color, marker, label in lines:
            lost = [100 * point.lost for point in points]
            panels[0].plot(layers, lost, color=color, marker=marker, label=label)
            if has_accuracy:
                accuracy = [100 * (point.accuracy or 0.0) for point in points]
                panels[1].plot(layers, accuracy, color=color, marker=marker)
        panels[0].axhline(100 * LITTLE, color=NEUTRAL, linestyle="--", linewidth=1)
        panels[0].set_ylabel("lost of the embedding (%)")
        if has_accuracy:
            panels[1].axhline(100 * (curve.whole or 0.0), color=NEUTRAL, linestyle="--", linewidth=1)
            panels[1].set_ylabel("zero-shot accuracy (%)")
        for axes in panels:
            for layer in curve.which:
                axes.axvspan(layer - 0.5, layer + 0.5, color=NEUTRAL, alpha=0.15, linewidth=0)
            axes.set_xticks(layers[:: 1 if len(layers) <= 12 else 2])
            axes.set_xlim(layers[0] - 0.5, layers[-1] + 0.5)
            axes.set_ylim(bottom=-2)
            axes.set_xlabel("layer")
            axes.spines[["top", "right"]].set_visible(False)
        figure.legend(loc="outside upper center", ncols=2)

    words = "; ".join(
        f"layer {point.layer}: {100 * point.alone.lost:.0f}%, with later ones {100 * point.onwards.lost:.0f}%"
        for point in curve.layers
    )
    text = f"Share of the embedding that is lost without the heads of a layer. {words}."
    return Drawing("layers", text, (7.6 if has_accuracy else 5.8, 3.1), paint)


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
        figure.legend(loc="outside lower center", ncols=6, fontsize=9, handletextpad=0.2, columnspacing=1.0)

    words = ", ".join(f"{concept} {count}" for concept, count in counts.most_common())
    return Drawing("phrases", f"Map of {len(points)} phrases by concept: {words}.", (7.2, 5.6), paint)


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
