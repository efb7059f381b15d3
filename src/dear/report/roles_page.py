"""The page of a role table: one self-contained HTML file, written atomically. Its pictures are small JPEGs,
each once whatever the number of heads that show it.
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float
from PIL import Image
from torch import Tensor

from dear.errors import without_surrogates
from dear.report import roles_plots as plots
from dear.report.html import render_page, write_html
from dear.report.mistakes import data_url
from dear.roles.ablation import LITTLE, LayerCurve
from dear.roles.entropy import UNIT
from dear.roles.pictures import Pictures, RankedImage
from dear.roles.table import Head, HeadRole, RoleTable
from dear.roles.trust import doubts, share_mark

ROLES = ("core", "other-specialized", "mixed", "generalization")
SIDES = {3000: 64, 8000: 48, 10**9: 32}
"""Pixels of a picture's side by how many pictures a page may have with it: about 7 MB at most."""
QUALITY = 70
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
    images = _images_by_head(pictures) if pictures else {}
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
        thumbnails=_thumbnails(pictures) if pictures else {},
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


def _thumbnails(pictures: Pictures) -> dict[int, str]:
    """The pictures as data URLs by their numbers; the more there are, the smaller."""
    side = next(side for most, side in SIDES.items() if len(pictures.thumbnails) <= most)
    urls = {}
    for number, pixels in pictures.thumbnails.items():
        picture = Image.fromarray(pixels.permute(1, 2, 0).numpy())
        picture.thumbnail((side, side), Image.Resampling.LANCZOS)
        urls[number] = data_url(picture, "JPEG", quality=QUALITY, optimize=True)
    return urls


def _images_by_head(pictures: Pictures) -> dict[Head, dict[str, Any]]:
    """For each head its images of most and of least, each with words, and masks over the first of most."""

    def cells(side: Sequence[RankedImage]) -> list[dict[str, Any]]:
        words = "{}: {:+.1f} standard deviations".format
        return [
            {"image": one.image, "words": without_surrogates(words(pictures.names[one.image], one.score))}
            for one in side
        ]

    return {
        head: {
            "most": cells(images.most),
            "least": cells(images.least),
            "veils": [
                (one.image, _veil(grid)) for one, grid in zip(images.most, images.attention, strict=False)
            ],
        }
        for head, images in pictures.heads.items()
    }


def _veil(grid: Float[Tensor, "row column"]) -> str:
    """Black whose opacity falls with the root of the attention, for weights are often concentrated in a few
    patches: clear at the strongest one.
    """
    level = (grid / grid.max().clamp_min(1e-12)).sqrt().numpy()
    opacity = np.round(255 * OPACITY * (1 - level)).astype(np.uint8)
    black = Image.fromarray(np.stack([np.zeros_like(opacity), opacity], axis=2))
    return data_url(black, "PNG", optimize=True)
