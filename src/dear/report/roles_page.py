"""The page of a role table: one self-contained HTML file, written atomically. Its pictures are small JPEGs,
each once whatever the number of heads that show it.
"""

from pathlib import Path
from typing import Any

from PIL import Image

from dear.errors import without_surrogates
from dear.report import roles_plots as plots
from dear.report.pages import data_url, render_page, write_html
from dear.roles.ablation import LITTLE, LayerCurve
from dear.roles.pictures import HeadImages, Pictures
from dear.roles.table import UNIT, HeadRole, RoleTable
from dear.roles.trust import doubts, share_mark, top_share

ROLES = ("core", "other-specialized", "mixed", "generalization")
SIDES = {3000: 64, 8000: 48, 10**9: 32}
"""Pixels of a picture's side by how many pictures a page may have with it: about 7 MB at most."""


def write_roles_page(
    path: Path, table: RoleTable, *, curve: LayerCurve | None = None, pictures: Pictures | None = None
) -> Path:
    """Write the page of a role table. A table does not hold the curve and the pictures of its discovery, so
    the page of a saved table is without them. Raises OutputError.
    """
    return write_html(path, roles_page(table, curve=curve, pictures=pictures))


def roles_page(table: RoleTable, *, curve: LayerCurve | None = None, pictures: Pictures | None = None) -> str:
    """The text of the page; a deterministic function of its input."""
    shown = pictures if pictures and pictures.heads else None
    images = {head: _head_images(of_head, shown) for head, of_head in shown.heads.items()} if shown else {}
    return render_page(
        "roles.html.j2",
        table=table,
        evidence=table.evidence,
        counts=[(role, sum(head.role == role for head in table.heads)) for role in ROLES],
        notes=doubts(table, curve),
        curve=curve,
        layers=plots.ablation_curve(curve) if curve else None,
        little=LITTLE,
        pictures=shown,
        thumbnails=_thumbnails(shown) if shown else {},
        roles=plots.head_role_map(table),
        concepts=plots.concept_map(table),
        unit=UNIT,
        map=plots.phrase_map(table),
        heads=[_head_row(head) | {"images": images.get((head.layer, head.head))} for head in table.heads],
        settings=[
            (key, ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value))
            for key, value in table.settings.items()
        ],
    )


def _head_row(head: HeadRole) -> dict[str, Any]:
    """A head in the table of the page."""
    return vars(head) | {
        "top": top_share(head),
        "word": head.attribute or head.concept or "–",
        "mark": share_mark(head),
        "parts": [f"{concept} {100 * share:.0f}%" for concept, share in head.share.items() if share > 0],
    }


def _thumbnails(pictures: Pictures) -> dict[int, str]:
    """The pictures as data URLs by their numbers; the more there are, the smaller."""
    side = next(side for most, side in SIDES.items() if len(pictures.thumbnails) <= most)
    urls = {}
    for number, pixels in pictures.thumbnails.items():
        picture = Image.fromarray(pixels.permute(1, 2, 0).numpy())
        picture.thumbnail((side, side), Image.Resampling.LANCZOS)
        urls[number] = data_url(picture, "JPEG", quality=70, optimize=True)
    return urls


def _head_images(images: HeadImages, pictures: Pictures) -> dict[str, Any]:
    """A head's images of most and of least, each with words."""
    words = "{}: {:+.1f} standard deviations".format
    return {
        side: [(i.image, without_surrogates(words(pictures.names[i.image], i.score))) for i in ranked]
        for side, ranked in vars(images).items()
    }
