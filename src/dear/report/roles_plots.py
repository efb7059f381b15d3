"""Figures of a role table: roles and concepts of its heads, what the heads of layers carry, the phrases."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from dear.report.drawing import MARKERS, NEUTRAL, PALETTE, Drawing, concept_styles, legend_below
from dear.roles.ablation import LITTLE, LayerCurve
from dear.roles.table import HeadRole, RoleTable

ROLE_COLORS = {"mixed": "#D5D9DE", "other-specialized": "#8A919C", "generalization": "#444B57"}
ROLE_WORDS = {"mixed": "mixed", "other-specialized": "other", "generalization": "general"}


def head_role_map(table: RoleTable) -> Drawing:
    """The heads of a role table: layers down, the last at the bottom; colored by role or attribute."""
    colors = {name: PALETTE[number % len(PALETTE)] for number, name in enumerate(table.attributes)}
    columns = 1 + max(head.head for head in table.heads)
    width = min(max(4.8 / columns, 0.6), 1.2)

    def paint(figure: Figure) -> None:
        axes, rows = _head_axes(figure, table.heads)
        for head in table.heads:
            color, word, share = _head_cell(head, colors)
            y = rows[head.layer]
            axes.barh(y, 0.95, 0.92, left=head.head - 0.475, color=color)
            text: dict[str, Any] = {"ha": "center", "va": "center", "color": _readable_on(color)}
            axes.text(head.head, y - (0.14 if share else 0), word, fontsize=9 if width > 0.8 else 8, **text)
            axes.text(head.head, y + 0.22, share, fontsize=8 if width > 0.8 else 7, **text)
        keys = {label: Patch(color=color) for label, color in (colors | ROLE_COLORS).items()}
        legend_below(figure, 4, keys, handlelength=1.1, handleheight=1.0)

    legend = -(-(len(colors) + len(ROLE_COLORS)) // 4)
    layers = len({head.layer for head in table.heads})
    size = (max(0.9 + width * columns, 5.2), 0.8 + 0.56 * layers + 0.24 * legend)
    words = _describe_heads(table.heads, lambda head: head.attribute or head.role)
    return Drawing("roles", f"Role of each attention head. {words}.", size, paint)


def _head_axes(figure: Figure, heads: Sequence[HeadRole]) -> tuple[Axes, dict[int, int]]:
    """Empty axes for a cell for each head, head numbers above, and the row of each layer."""
    axes, columns = figure.add_subplot(), range(max(head.head for head in heads) + 1)
    rows = {layer: row for row, layer in enumerate(sorted({head.layer for head in heads}))}
    axes.set(xlim=(-0.5, len(columns) - 0.5), ylim=(len(rows) - 0.5, -0.5), xlabel="head", ylabel="layer")
    axes.set_xticks(columns)
    axes.set_yticks(range(len(rows)), [*map(str, rows)])
    axes.xaxis.tick_top()
    axes.xaxis.set_label_position("top")
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    return axes, rows


def _describe_heads(heads: Sequence[HeadRole], word: Callable[[HeadRole], Any]) -> str:
    return "; ".join(f"layer {head.layer} head {head.head}: {word(head)}" for head in heads)


def _head_cell(head: HeadRole, colors: Mapping[str, str]) -> tuple[str, str, str]:
    """A head's color, its label, and for a core head the attribute's share, such as "70%", where known."""
    if head.attribute is not None:
        share = head.share.get(head.attribute)
        return colors[head.attribute], head.attribute, "" if share is None else f"{100 * share:.0f}%"
    concept = head.concept or ""
    word = concept.lower() if head.role == "other-specialized" and 0 < len(concept) < 10 else ""
    return ROLE_COLORS[head.role], word or ROLE_WORDS[head.role], ""


def _readable_on(color: str) -> str:
    """Black or white, whichever has more contrast (WCAG's relative luminance)."""
    channels = [
        value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4 for value in to_rgb(color)
    ]
    luminance = 0.2126 * channels[0] + 0.7152 * channels[1] + 0.0722 * channels[2]
    return "#111111" if (luminance + 0.05) / 0.056 > 1.05 / (luminance + 0.05) else "#FFFFFF"


def concept_map(table: RoleTable) -> Drawing | None:
    """Heads as bars of their distribution over concepts: layers down, heads across. None without."""
    heads, order = [head for head in table.heads if head.share], concept_order(table)
    concepts = [concept for concept in order if any(head.share.get(concept) for head in heads)]
    if not heads:
        return None
    styles = concept_styles(order)
    looks: dict[str, dict[str, Any]] = {
        concept: {"facecolor": color, "hatch": None if marker == MARKERS[0] else "////", "edgecolor": "white"}
        for concept, (color, marker) in styles.items()
    }

    def paint(figure: Figure) -> None:
        axes, rows = _head_axes(figure, heads)
        for head in heads:
            x = head.head - 0.45
            for concept in concepts:
                if width := 0.9 * head.share.get(concept, 0):
                    axes.barh(rows[head.layer], width, 0.6, left=x, linewidth=0.3, **looks[concept])
                    x += width
        keys = {concept: Patch(**looks[concept]) for concept in concepts}
        legend_below(figure, 6, keys, handlelength=1.4)

    layers, columns = len({head.layer for head in heads}), 1 + max(head.head for head in heads)
    size = (max(0.9 + 0.5 * columns, 5.2), 0.9 + 0.4 * layers + 0.24 * -(-len(concepts) // 4))
    words = _describe_heads(heads, lambda head: head.concept)
    text = f"Distribution over concepts of each head, by dominant concept. {words}."
    return Drawing("concepts", text, size, paint)


def ablation_curve(curve: LayerCurve) -> Drawing:
    """What the embedding loses without the heads of each layer, and without those from it on, in percent."""
    layers = [point.layer for point in curve.layers]
    alone = [100 * point.alone.lost for point in curve.layers]
    onwards = [100 * point.onwards.lost for point in curve.layers]

    def paint(figure: Figure) -> None:
        axes = figure.add_subplot()
        axes.plot(layers, alone, color=PALETTE[0], marker="o", label="without its heads")
        axes.plot(layers, onwards, color=PALETTE[4], marker="s", label="and without those of later layers")
        axes.axhline(100 * LITTLE, color=NEUTRAL, linestyle="--", linewidth=1)
        for layer in curve.which:
            axes.axvspan(layer - 0.5, layer + 0.5, color=NEUTRAL, alpha=0.15, linewidth=0)
        axes.set_xticks(layers[:: 1 if len(layers) <= 8 else 2])
        axes.set(xlim=(layers[0] - 0.5, layers[-1] + 0.5), xlabel="layer", ylabel="lost of the embedding (%)")
        axes.set_ylim(bottom=-2)
        axes.spines[["top", "right"]].set_visible(False)
        legend_below(figure, 2)

    words = "; ".join(
        f"layer {layer}: {of_layer:.0f}%, with later ones {with_later:.0f}%"
        for layer, of_layer, with_later in zip(layers, alone, onwards, strict=True)
    )
    text = f"Share of the embedding that is lost without the heads of a layer. {words}."
    return Drawing("layers", text, (5.2, 3.1), paint)


def phrase_map(table: RoleTable) -> Drawing | None:
    """Phrases on a plane, colored by concept; the name of each concept is at the median of its phrases. None
    if the table has no map of its phrases.
    """
    points: Sequence[Sequence[Any]] = table.evidence.get("points") or ()
    if not points:
        return None
    counts, of_heads = Counter(str(point[2]) for point in points), concept_order(table)
    styles = concept_styles(list(dict.fromkeys([*of_heads, *counts])))

    def paint(figure: Figure) -> None:
        axes = figure.add_subplot()
        for concept, (color, marker) in styles.items():
            if concept in counts:
                x, y, *_ = zip(*(point for point in points if point[2] == concept), strict=True)
                axes.scatter(x, y, s=16, color=color, marker=marker, label=concept, linewidths=0)
                middle = (float(np.median(x)), float(np.median(y)))
                axes.annotate(concept, middle, ha="center", va="center", fontsize=10, fontweight="bold")
        axes.set_axis_off()
        legend_below(figure, 6, handletextpad=0.2, columnspacing=1.0)

    words = ", ".join(f"{concept} {count}" for concept, count in counts.most_common())
    return Drawing("phrases", f"Map of {len(points)} phrases by concept: {words}.", (5.7, 5.0), paint)


def concept_order(table: RoleTable) -> list[str]:
    """The core attributes first, which keeps their colors from the map of roles, then concepts by share."""
    total = Counter[str]()
    for head in table.heads:
        total.update({name: share for name, share in head.share.items() if share > 0})
    others = [name for name, _ in total.most_common() if name not in table.attributes]
    return [*table.attributes, *others]
