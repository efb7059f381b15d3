"""The page of a role table and its figures: one self-contained HTML file. Pictures are small
JPEGs, each once whatever the number of heads that show it.
"""

from collections.abc import Mapping
from typing import Any

from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from PIL import Image

from dear.report.drawing import NEUTRAL, PALETTE, Drawing, legend_below
from dear.report.render import data_url, render_page
from dear.roles.ablation import LITTLE, LayerCurve
from dear.roles.pictures import HeadGallery, HeadImages
from dear.roles.table import ROLES, UNIT, HeadRole, RoleTable
from dear.roles.trust import doubts, share_mark, top_share
from dear.text import without_surrogates

SIDES = {3000: 64, 8000: 48, 10**9: 32}
"""Pixels of a picture's side by how many pictures a page may have with it: about 7 MB at most."""


def roles_page(
    table: RoleTable, *, curve: LayerCurve | None = None, pictures: HeadGallery | None = None
) -> str:
    """The page of a role table, a deterministic function of its input. A table does not hold the curve and
    the pictures of its discovery, so the page of a saved table is without them.
    """
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
        little=LITTLE,
        pictures=shown,
        thumbnails=_thumbnails(shown) if shown else {},
        roles=head_role_map(table),
        unit=UNIT,
        images=images,
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
