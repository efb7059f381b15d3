"""The page of a role table and its figures: one self-contained HTML file. Pictures are small
JPEGs, each once whatever the number of heads that show it.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

import numpy as np
from jaxtyping import Float
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator
from PIL import Image
from torch import Tensor

from dear.report.drawing import MARKERS, NEUTRAL, PALETTE, Drawing, legend_below, plain_axes
from dear.report.render import data_url, render_page
from dear.roles.ablation import LITTLE, LayerCurve
from dear.roles.inspection import Inspection
from dear.roles.phrase_map import MappedPhrase
from dear.roles.pictures import HeadGallery, HeadImages, Look
from dear.roles.table import ROLES, UNIT, HeadRole, RoleTable
from dear.roles.trust import doubts, share_mark, top_share
from dear.text import without_surrogates

SIDES = {3000: 64, 8000: 48, 10**9: 32}
"""Pixels of a picture's side by how many pictures a page may have with it: about 7 MB at most."""


LOOK_SIDE = 112  # pixels of a picture that shows where a head looks
ADDS, TAKES = np.array([213, 94, 0], dtype=np.float32), np.array([0, 114, 178], dtype=np.float32)
"""The colors of patches that add to a head's contribution, and that take from it."""
OPAQUE = 0.75  # of the color of the strongest patch
BINS = 12  # of the histogram of entropies


def roles_page(
    table: RoleTable, *, inspection: Inspection | None = None, phrases: Sequence[MappedPhrase] = ()
) -> str:
    """The page of a role table, a deterministic function of its input. A table does not hold what was seen of
    its heads on images (`inspect_heads`) nor its phrases on a plane (`map_phrases`).
    """
    inspection = inspection or Inspection()
    curve, pictures = inspection.curve, inspection.gallery
    shown = pictures if pictures and pictures.heads else None
    images = {head: _head_images(of_head, shown) for head, of_head in shown.heads.items()} if shown else {}
    return render_page(
        "roles.html.j2",
        table=table,
        evidence=table.evidence,
        counts=[(role, sum(head.role == role for head in table.heads)) for role in ROLES],
        notes=doubts(table, curve),
        curve=curve,
        layers=ablation_curve(curve) if curve else None,
        terms=inspection.terms,
        entropies=entropy_histogram(table),
        phrase_map=phrase_map(phrases) if phrases else None,
        looks=_looks(shown) if shown else {},
        little=LITTLE,
        pictures=shown,
        thumbnails=_thumbnails(shown) if shown else {},
        roles=head_role_map(table),
        unit=UNIT,
        images=images,
        single=[head for head in table.heads if head.phrases or (head.layer, head.head) in images],
        top_share=top_share,
        share_mark=share_mark,
        settings=[
            (key, ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value))
            for key, value in table.settings.items()
        ],
    )


def _thumbnails(pictures: HeadGallery) -> dict[int, str]:
    """The pictures as data URLs by their numbers; the more there are, the smaller."""
    side = next(side for most, side in SIDES.items() if len(pictures.thumbnails) <= most)
    urls = {}
    for number, pixels in pictures.thumbnails.items():
        picture = Image.fromarray(pixels.permute(1, 2, 0).numpy())
        picture.thumbnail((side, side), Image.Resampling.LANCZOS)
        urls[number] = data_url(picture, "JPEG", quality=70, optimize=True)
    return urls


def _looks(pictures: HeadGallery) -> dict[tuple[int, int], list[tuple[str, str]]]:
    """Where each head looks in its first images, as data URLs with words."""
    urls = dict[tuple[int, int], list[tuple[str, str]]]()
    for head, looks in pictures.looks.items():
        for look in looks:
            pixels = pictures.thumbnails[look.image].permute(1, 2, 0).numpy()
            url = data_url(
                color_patches(Image.fromarray(pixels), look.grid), "JPEG", quality=75, optimize=True
            )
            urls.setdefault(head, []).append((url, _describe_look(pictures, look)))
    return urls


def _describe_look(pictures: HeadGallery, look: Look) -> str:
    whole = float(look.grid.sum()) + look.class_token
    row, column = divmod(int(look.grid.argmax()), look.grid.shape[1])
    words = f"{pictures.names[look.image]}: patches {whole - look.class_token:+.3f}, class token"
    strongest = f"strongest patch: row {row + 1}, column {column + 1}"
    return without_surrogates(f"{words} {look.class_token:+.3f}; {strongest}")


def color_patches(picture: Image.Image, grid: Float[Tensor, "row column"]) -> Image.Image:
    """A picture in gray under the color of each patch: orange where it adds, blue where it takes away, the
    stronger the more opaque; the strongest patch of the picture has the most.
    """
    strength = (grid / grid.abs().max().clamp_min(1e-12)).numpy()[..., None]
    size = (LOOK_SIDE, LOOK_SIDE)
    gray = np.asarray(picture.resize(size, Image.Resampling.BICUBIC).convert("L").convert("RGB"), np.float32)
    opacity = Image.fromarray((255 * OPAQUE * np.abs(strength[..., 0])).round().astype(np.uint8))
    colors = Image.fromarray(np.where(strength >= 0, ADDS, TAKES).astype(np.uint8))
    opaque = np.asarray(opacity.resize(size, Image.Resampling.NEAREST), np.float32)[..., None] / 255
    over = np.asarray(colors.resize(size, Image.Resampling.NEAREST), np.float32)
    return Image.fromarray(((1 - opaque) * gray + opaque * over).round().astype(np.uint8))


def _head_images(images: HeadImages, pictures: HeadGallery) -> dict[str, Any]:
    """A head's images of most and of least, each with words."""
    words = "{}: {:+.1f} standard deviations".format
    return {
        side: [(i.image, without_surrogates(words(pictures.names[i.image], i.score))) for i in ranked]
        for side, ranked in vars(images).items()
    }


def head_role_map(table: RoleTable) -> Drawing:
    """The heads of a role table: layers down, the last at the bottom; colored by role or attribute."""
    colors = {name: PALETTE[number % len(PALETTE)] for number, name in enumerate(table.attributes)}
    rows = {layer: row for row, layer in enumerate(sorted({head.layer for head in table.heads}))}
    columns = 1 + max(head.head for head in table.heads)
    width = min(max(4.8 / columns, 0.6), 1.2)

    def paint(figure: Figure) -> None:
        axes = figure.add_subplot()
        for head in table.heads:
            color, word, share = _head_cell(head, colors)
            y = rows[head.layer]
            axes.barh(y, 0.95, 0.92, left=head.head - 0.475, color=color)
            text: dict[str, Any] = {"ha": "center", "va": "center", "color": _readable_on(color)}
            axes.text(head.head, y - (0.14 if share else 0), word, fontsize=9 if width > 0.8 else 8, **text)
            axes.text(head.head, y + 0.22, share, fontsize=8 if width > 0.8 else 7, **text)
        axes.set(xlim=(-0.5, columns - 0.5), ylim=(len(rows) - 0.5, -0.5), xlabel="head", ylabel="layer")
        axes.set_xticks(range(columns))
        axes.set_yticks(range(len(rows)), [*map(str, rows)])
        axes.xaxis.tick_top()
        axes.xaxis.set_label_position("top")
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
        labels = colors | {role: color for role, (_, color) in ROLES.items() if color}
        keys = {label: Patch(color=color) for label, color in labels.items()}
        legend_below(figure, 4, keys, handlelength=1.1, handleheight=1.0)

    legend = -(-(len(colors) + len(ROLES) - 1) // 4)
    size = (max(0.9 + width * columns, 5.2), 0.8 + 0.56 * len(rows) + 0.24 * legend)
    words = "; ".join(f"layer {h.layer} head {h.head}: {h.attribute or h.role}" for h in table.heads)
    return Drawing("roles", f"Role of each attention head. {words}.", size, paint)


def _head_cell(head: HeadRole, colors: Mapping[str, str]) -> tuple[str, str, str]:
    """A head's color, its label, and for a core head the attribute's share, such as "70%", where known."""
    if head.attribute is not None:
        share = head.share.get(head.attribute)
        return colors[head.attribute], head.attribute, "" if share is None else f"{100 * share:.0f}%"
    concept = head.concept or ""
    word = concept.lower() if head.role == "other-specialized" and 0 < len(concept) < 10 else ""
    short, color = ROLES[head.role]
    return color, word or short, ""


def _readable_on(color: str) -> str:
    """Black or white, whichever has more contrast (WCAG's relative luminance)."""
    channels = [
        value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4 for value in to_rgb(color)
    ]
    luminance = 0.2126 * channels[0] + 0.7152 * channels[1] + 0.0722 * channels[2]
    return "#111111" if (luminance + 0.05) / 0.056 > 1.05 / (luminance + 0.05) else "#FFFFFF"


def entropy_histogram(table: RoleTable) -> Drawing | None:
    """How many heads have which concept entropy, by role; None if the table has no entropies."""
    heads = [(head.role, head.entropy) for head in table.heads if head.entropy is not None]
    if not heads:
        return None
    edges = np.linspace(0, max(max(entropy for _, entropy in heads), 1e-3), BINS + 1)
    colors = {role: color or PALETTE[0] for role, (_, color) in ROLES.items()}
    present = [role for role in ROLES if any(role == of for of, _ in heads)]
    limits = table.evidence.get("thresholds") or ()

    def paint(figure: Figure) -> None:
        axes = figure.add_subplot()
        values = [[entropy for of, entropy in heads if of == role] for role in present]
        axes.hist(
            values, [*edges.tolist()], stacked=True, color=[colors[role] for role in present], label=present
        )
        for limit in limits:
            axes.axvline(limit, color=NEUTRAL, linestyle="--", linewidth=1)
        axes.set(xlabel=f"concept entropy ({UNIT})", ylabel="heads")
        axes.yaxis.set_major_locator(MaxNLocator(integer=True))
        plain_axes(axes, "y")
        legend_below(figure, 2)

    counts = np.histogram([entropy for _, entropy in heads], edges)[0]
    words = "; ".join(
        f"{low:.2f} to {high:.2f}: {count}"
        for low, high, count in zip(edges, edges[1:], counts, strict=False)
        if count
    )
    return Drawing("entropies", f"Heads by concept entropy in {UNIT}. {words}.", (5.2, 3.1), paint)


def phrase_map(phrases: Sequence[MappedPhrase]) -> Drawing:
    """Phrases on a plane, colored by concept; the name of a concept is at the median of its phrases."""
    counts = Counter(phrase.concept for phrase in phrases)
    styles = {
        concept: (PALETTE[number % len(PALETTE)], MARKERS[number // len(PALETTE) % len(MARKERS)])
        for number, (concept, _) in enumerate(counts.most_common())
    }

    def paint(figure: Figure) -> None:
        axes = figure.add_subplot()
        for concept, (color, marker) in styles.items():
            x, y = zip(*((of.x, of.y) for of in phrases if of.concept == concept), strict=True)
            axes.scatter(x, y, s=16, color=color, marker=marker, label=concept, linewidths=0)
            middle = (median(x), median(y))
            axes.annotate(concept, middle, ha="center", va="center", fontsize=10, fontweight="bold")
        axes.set_axis_off()
        legend_below(figure, 4, handletextpad=0.2, columnspacing=1.0)

    words = ", ".join(f"{concept} {count}" for concept, count in counts.most_common())
    return Drawing("phrases", f"Map of {len(phrases)} phrases by concept: {words}.", (5.7, 5.2), paint)


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
