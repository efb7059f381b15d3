"""Figures of a role table: heads by concept, the histogram of concept entropy, the map of phrases."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from dear.errors import DataError
from dear.report.plots import NEUTRAL, PALETTE, ROLE_COLORS, ROLE_WORDS
from dear.report.svg import INK, draw
from dear.roles.ablation import LITTLE, Ablated, LayerCurve
from dear.roles.entropy import UNIT

MARKERS = ("o", "s", "^", "D", "P")
CORE = "#0072B2"


def concept_looks(concepts: Sequence[str]) -> dict[str, tuple[str, str]]:
    """A colour and a marker for each concept; the pairs are distinct for up to 35 concepts."""
    return {
        concept: (PALETTE[at % len(PALETTE)], MARKERS[at // len(PALETTE) % len(MARKERS)])
        for at, concept in enumerate(concepts)
    }


def concept_map(table: Mapping[str, Any]) -> str:
    """Heads as bars of their distribution over concepts: layers down, heads across.

    Raises DataError if no head has a distribution.
    """
    heads = [head for head in table["heads"] if head.get("share")]
    if not heads:
        raise DataError("no head of the role table has a distribution over concepts to draw")
    order = concept_order(table)
    looks = concept_looks(order)
    concepts = [one for one in order if any(head["share"].get(one) for head in heads)]
    layers = sorted({int(head["layer"]) for head in heads})
    columns = range(max(int(head["head"]) for head in heads) + 1)

    def paint(figure: Figure) -> None:
        axes = figure.add_subplot()
        for head in heads:
            x, y = int(head["head"]) - 0.45, layers.index(int(head["layer"]))
            for concept in concepts:
                width = 0.9 * float(head["share"].get(concept, 0))
                if width:
                    hatch = "////" if looks[concept][1] != MARKERS[0] else None
                    color = looks[concept][0]
                    axes.barh(
                        y, width, 0.6, left=x, color=color, hatch=hatch, edgecolor="white", linewidth=0.3
                    )
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
            Patch(
                facecolor=looks[one][0],
                edgecolor="white",
                hatch="////" if looks[one][1] != MARKERS[0] else None,
                label=one,
            )
            for one in concepts
        ]
        figure.legend(handles=keys, loc="outside lower center", ncols=6, handlelength=1.4, fontsize=9)

    words = "; ".join(f"layer {h['layer']} head {h['head']}: {h['concept']}" for h in heads)
    size = (max(0.9 + 0.62 * len(columns), 5.6), 0.9 + 0.4 * len(layers) + 0.24 * -(-len(concepts) // 6))
    return draw(
        "concepts", f"Distribution over concepts of each head, by dominant concept. {words}.", size, paint
    )


def entropy_histogram(table: Mapping[str, Any]) -> str:
    """Concept entropies of all heads, coloured by role, with the two thresholds where known."""
    heads = [head for head in table["heads"] if head.get("entropy") is not None]
    if not heads:
        raise DataError("no head of the role table has a concept entropy to draw")
    values = [float(head["entropy"]) for head in heads]
    edges = np.linspace(0, max(*values, 0.1) * 1.0001, 17)
    bounds = [float(one) for one in (table.get("evidence") or {}).get("thresholds") or ()]
    colors = {"core": CORE, **ROLE_COLORS}
    words = {"core": "core", **ROLE_WORDS}

    def paint(figure: Figure) -> None:
        axes = figure.add_subplot()
        groups = [[v for v, h in zip(values, heads, strict=True) if h["role"] == role] for role in colors]
        axes.hist(
            groups,
            edges.tolist(),
            stacked=True,
            color=[*colors.values()],
            label=[*words.values()],
            rwidth=0.92,
        )
        for bound in bounds:
            axes.axvline(bound, color=INK, linestyle="--", linewidth=1)
        axes.set_xlabel(f"concept entropy ({UNIT})")
        axes.set_ylabel("heads")
        axes.spines[["top", "right"]].set_visible(False)
        figure.legend(loc="outside upper center", ncols=4, handlelength=1.1, handleheight=1.0)

    limits = f" Thresholds at {' and '.join(f'{one:.2f}' for one in bounds)}." if bounds else ""
    text = f"Concept entropy of {len(heads)} heads, {min(values):.2f} to {max(values):.2f} {UNIT}.{limits}"
    return draw("entropy", text, (5.6, 3.0), paint)


def ablation_curve(curve: LayerCurve) -> str:
    """What the embedding loses without the heads of each layer, and without those from it on; beside it the
    zero-shot accuracies, if they are known.
    """
    layers = [one.layer for one in curve.layers]
    alone, onwards = [one.alone for one in curve.layers], [one.onwards for one in curve.layers]
    known = curve.whole is not None
    looks: list[tuple[list[Ablated], str, str, str]] = [
        (alone, PALETTE[0], "o", "without its heads"),
        (onwards, PALETTE[4], "s", "without its heads and those of all later layers"),
    ]

    def paint(figure: Figure) -> None:
        axes = figure.subplots(1, 2 if known else 1, squeeze=False)[0]
        for values, color, marker, label in looks:
            axes[0].plot(layers, [100 * one.lost for one in values], color=color, marker=marker, label=label)
            if known:
                accuracy = [100 * (one.accuracy or 0.0) for one in values]
                axes[1].plot(layers, accuracy, color=color, marker=marker)
        axes[0].axhline(100 * LITTLE, color=NEUTRAL, linestyle="--", linewidth=1)
        axes[0].set_ylabel("lost of the embedding (%)")
        if known:
            axes[1].axhline(100 * (curve.whole or 0.0), color=NEUTRAL, linestyle="--", linewidth=1)
            axes[1].set_ylabel("zero-shot accuracy (%)")
        for one in axes:
            for layer in curve.which:
                one.axvspan(layer - 0.5, layer + 0.5, color=NEUTRAL, alpha=0.15, linewidth=0)
            one.set_xticks(layers[:: 1 if len(layers) <= 12 else 2])
            one.set_xlim(layers[0] - 0.5, layers[-1] + 0.5)
            one.set_ylim(bottom=-2)
            one.set_xlabel("layer")
            one.spines[["top", "right"]].set_visible(False)
        figure.legend(loc="outside upper center", ncols=2)

    words = "; ".join(
        f"layer {one.layer}: {100 * one.alone.lost:.0f}%, with later ones {100 * one.onwards.lost:.0f}%"
        for one in curve.layers
    )
    text = f"Share of the embedding that is lost without the heads of a layer. {words}."
    return draw("layers", text, (7.6 if known else 5.8, 3.1), paint)


def phrase_map(table: Mapping[str, Any]) -> str:
    """Phrases on a plane, coloured by concept; the name of each concept is at the median of its phrases.

    Raises DataError if the table has no map of its phrases.
    """
    points: Sequence[Sequence[Any]] = (table.get("evidence") or {}).get("points") or ()
    if not points:
        raise DataError("there are no phrases to draw a map of")
    counts = Counter(str(point[2]) for point in points if point[2])
    known = concept_order(table)
    concepts = [*(one for one in known if one in counts), *(one for one in counts if one not in known)]
    looks = concept_looks([*known, *(one for one in concepts if one not in known)])

    def paint(figure: Figure) -> None:
        axes = figure.add_subplot()
        outside = [point for point in points if not point[2]]
        if outside:
            axes.scatter(
                [p[0] for p in outside], [p[1] for p in outside], s=9, color=NEUTRAL, label="unassigned"
            )
        for concept in concepts:
            mine = [point for point in points if point[2] == concept]
            color, marker = looks[concept]
            axes.scatter(
                [p[0] for p in mine],
                [p[1] for p in mine],
                s=16,
                color=color,
                marker=marker,
                label=concept,
                linewidths=0,
            )
            place = (float(np.median([p[0] for p in mine])), float(np.median([p[1] for p in mine])))
            axes.annotate(concept, place, ha="center", va="center", fontsize=10, fontweight="bold")
        axes.set_axis_off()
        figure.legend(loc="outside lower center", ncols=6, fontsize=9, handletextpad=0.2, columnspacing=1.0)

    words = ", ".join(f"{concept} {count}" for concept, count in counts.most_common())
    return draw("phrases", f"Map of {len(points)} phrases by concept: {words}.", (7.2, 5.6), paint)


def concept_order(table: Mapping[str, Any]) -> list[str]:
    """The core attributes first, which keeps their colours from the map of roles, then concepts by share."""
    total: dict[str, float] = dict.fromkeys(map(str, table.get("attributes") or ()), 0.0)
    core = len(total)
    for head in table["heads"]:
        for concept, share in (head.get("share") or {}).items():
            if share > 0:
                total[concept] = total.get(concept, 0.0) + share
    names = [*total]
    return names[:core] + sorted(names[core:], key=lambda one: -total[one])
