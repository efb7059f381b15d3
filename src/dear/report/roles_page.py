"""The page of a role table: one self-contained HTML file, written atomically. Its pictures are small JPEGs,
each once whatever the number of heads that show it, within a limit of the page's size.
"""

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, UInt8
from PIL import Image
from torch import Tensor

from dear.errors import without_surrogates
from dear.report import roles_plots as plots
from dear.report.html import render_page, write_html
from dear.report.mistakes import data_url
from dear.roles.ablation import LITTLE, LayerCurve
from dear.roles.entropy import UNIT
from dear.roles.pictures import HeadImages, Pictures
from dear.roles.table import HeadRole, RoleTable
from dear.roles.trust import doubts, share_mark

ROLES = ("core", "other-specialized", "mixed", "generalization")
MAX_BYTES = 6_000_000
"""Bytes of a page that pictures may take as base64 text; everything else stays well below 4 MB."""
ENCODINGS = ((64, 80), (56, 65), (48, 50), (32, 50))
"""Sides in pixels and JPEG qualities, tried in turn until all pictures are within the limit."""
OPACITY = 0.7
"""Of the black over the patch that a head attends to least."""


def write_roles_page(
    path: str | os.PathLike[str],
    table: Mapping[str, Any],
    *,
    curve: LayerCurve | None = None,
    pictures: Pictures | None = None,
) -> Path:
    """Write the page of a role table in its JSON form. Raises DataError for an empty table, OutputError."""
    return write_html(Path(path), roles_page(table, curve=curve, pictures=pictures))


def roles_page(
    table: Mapping[str, Any], *, curve: LayerCurve | None = None, pictures: Pictures | None = None
) -> str:
    """The text of the page; a deterministic function of its input. A table does not hold the curve and the
    pictures of its discovery, so the page of a saved table is without them.
    """
    evidence: Mapping[str, Any] = table.get("evidence") or {}
    heads = table["heads"]
    roles = RoleTable.from_json(table, "the role table")
    gallery = encode_pictures(pictures) if pictures else None
    images = _images_by_head(pictures, gallery) if pictures and gallery else {}
    return render_page(
        "roles.html.j2",
        source=table["source"],
        weights=table["weights"],
        attributes=list(table["attributes"]),
        counts=[(role, sum(head["role"] == role for head in heads)) for role in ROLES],
        notes=doubts(roles, curve),
        curve=curve,
        layers=plots.ablation_curve(curve) if curve else None,
        little=LITTLE,
        pictures=pictures if images else None,
        gallery=gallery,
        roles=plots.head_role_map(table),
        concepts=plots.concept_map(table),
        entropy=plots.entropy_histogram(table),
        unit=UNIT,
        thresholds=[f"{bound:.2f}" for bound in evidence.get("thresholds") or ()],
        map=plots.phrase_map(table),
        clusters=list(evidence.get("clusters") or ()),
        dbcv=evidence.get("dbcv"),
        tried=list(evidence.get("tried") or ()),
        by_k=dict(evidence.get("dbcv_by_k") or {}),
        left_out=evidence.get("left_out_by_hdbscan"),
        phrases=evidence.get("phrases"),
        heads=[_head_row(head, images.get((head["layer"], head["head"]))) for head in heads],
        settings=[
            (key, ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value))
            for key, value in table["settings"].items()
        ],
    )


def _head_row(head: Mapping[str, Any], images: Mapping[str, Any] | None) -> dict[str, Any]:
    """A head in the table of the page."""
    shares = head["share"]
    return {
        **head,
        "images": images,
        "top": max(shares.values(), default=None),
        "word": head["attribute"] or head["concept"] or "–",
        "mark": share_mark(HeadRole(head["layer"], head["head"], head["role"], share=shares)),
        "nats": head["entropy"],
        "entropy": "–" if head["entropy"] is None else f"{head['entropy']:.2f}",
        "parts": [(concept, f"{100 * share:.0f}") for concept, share in shares.items() if share > 0],
    }


@dataclass(frozen=True)
class Gallery:
    """Pictures as data URLs.

    Attributes:
        thumbnails: By the number of the image.
        veils: For each head, masks over the first images of its row: black where the head does not look.
        per_head: How many images of each side a head has; fewer than asked for if more do not fit.
    """

    thumbnails: dict[int, str]
    veils: dict[tuple[int, int], list[str]]
    per_head: int


def encode_pictures(pictures: Pictures, limit: int = MAX_BYTES) -> Gallery:
    """Encode the pictures. Above the limit they become smaller, then fewer: half as many for each head, and
    so on; at last none.
    """
    heads = pictures.heads
    count = max((len(images.most) for images in heads.values()), default=0)
    while count:
        veils = {head: [_veil(grid) for grid in images.attention[:count]] for head, images in heads.items()}
        veil_bytes = sum(len(url) for urls in veils.values() for url in urls)
        numbers = sorted({number for images in heads.values() for number in image_numbers(images, count)})
        for side, quality in ENCODINGS:
            thumbnails = _encoded(pictures.thumbnails, numbers, side, quality, limit - veil_bytes)
            if thumbnails is not None:
                return Gallery(thumbnails, veils, count)
        count //= 2
    return Gallery({}, {}, 0)


def image_numbers(images: HeadImages, count: int) -> list[int]:
    """The numbers of the images of a head, ``count`` of each side."""
    return [scored.image for scored in (*images.most[:count], *images.least[:count])]


def _images_by_head(pictures: Pictures, gallery: Gallery) -> dict[tuple[int, int], dict[str, Any]]:
    """The images of each head on the page."""

    def cell(image: int, score: float) -> dict[str, Any]:
        words = f"{pictures.names[image]}: {score:+.1f} standard deviations"
        return {"image": image, "words": without_surrogates(words)}

    count = gallery.per_head
    return {
        head: {
            "most": [cell(scored.image, scored.score) for scored in images.most[:count]],
            "least": [cell(scored.image, scored.score) for scored in images.least[:count]],
            "veils": list(zip((scored.image for scored in images.most), gallery.veils[head], strict=False)),
        }
        for head, images in pictures.heads.items()
        if count
    }


def _encoded(
    thumbnails: Mapping[int, UInt8[Tensor, "3 side side"]],
    numbers: Iterable[int],
    side: int,
    quality: int,
    limit: int,
) -> dict[int, str] | None:
    """Thumbnails as data URLs, or None above the limit."""
    urls: dict[int, str] = {}
    total = 0
    for number in numbers:
        picture = Image.fromarray(thumbnails[number].permute(1, 2, 0).numpy())
        if picture.width > side:
            picture = picture.resize((side, side), Image.Resampling.LANCZOS)
        urls[number] = data_url(picture, "JPEG", quality=quality, optimize=True)
        total += len(urls[number])
        if total > limit:
            return None
    return urls


def _veil(grid: Float[Tensor, "row column"]) -> str:
    """Black whose opacity falls with the root of the attention, for weights are often concentrated in a few
    patches: clear at the strongest one.
    """
    level = (grid / grid.max().clamp_min(1e-12)).sqrt().numpy()
    opacity = np.round(255 * OPACITY * (1 - level)).astype(np.uint8)
    black = Image.fromarray(np.stack([np.zeros_like(opacity), opacity], axis=2))
    return data_url(black, "PNG", optimize=True)
