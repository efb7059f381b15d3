"""The page of a role table: one self-contained HTML file, written atomically."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dear.report import plots, roles_plots
from dear.report.html import page, write_whole
from dear.report.roles_pictures import gallery, rows
from dear.report.svg import inline
from dear.roles.ablation import LITTLE, LayerCurve, layers_in_words
from dear.roles.entropy import UNIT
from dear.roles.pictures import Pictures
from dear.roles.table import HeadRole, RoleTable
from dear.roles.trust import notes, share_mark, stability


def write_roles_page(
    path: str | os.PathLike[str],
    table: Mapping[str, Any],
    *,
    curve: LayerCurve | None = None,
    pictures: Pictures | None = None,
) -> Path:
    """Write the page of a role table in its JSON form. Raises DataError for an empty table, OutputError."""
    return write_whole(Path(path), roles_page(table, curve=curve, pictures=pictures))


def roles_page(
    table: Mapping[str, Any], *, curve: LayerCurve | None = None, pictures: Pictures | None = None
) -> str:
    """The text of the page; a deterministic function of its input. A table does not hold the curve and the
    pictures of its discovery, so the page of a saved table is without them.
    """
    evidence: Mapping[str, Any] = table.get("evidence") or {}
    heads = table["heads"]
    has_share = any(head.get("share") for head in heads)
    has_entropy = any(head.get("entropy") is not None for head in heads)
    points = evidence.get("points") or ()
    read = RoleTable.from_json(table, "the role table")
    kept = stability(read)
    found = gallery(pictures) if pictures else None
    images = rows(pictures, found) if pictures and found else {}
    warning = curve.warning() if curve else None
    return page(
        "roles.html.j2",
        source=table["source"],
        weights=table["weights"],
        attributes=list(table["attributes"]),
        counts=_counts(heads),
        notes=[*([warning] if warning else []), *notes(read)],
        curve=curve,
        layers=inline(roles_plots.ablation_curve(curve)) if curve else None,
        little=LITTLE,
        analysed=layers_in_words(curve.which) if curve else None,
        pictures=pictures if images else None,
        gallery=found,
        stable=bool(kept),
        roles=inline(plots.head_role_map(table)),
        concepts=inline(roles_plots.concept_map(table)) if has_share else None,
        entropy=inline(roles_plots.entropy_histogram(table)) if has_entropy else None,
        unit=UNIT,
        thresholds=[f"{bound:.2f}" for bound in evidence.get("thresholds") or ()],
        map=inline(roles_plots.phrase_map(table)) if points else None,
        clusters=list(evidence.get("clusters") or ()),
        dbcv=evidence.get("dbcv"),
        tried=list(evidence.get("tried") or ()),
        by_k=dict(evidence.get("dbcv_by_k") or {}),
        left_out=evidence.get("left_out_by_hdbscan"),
        phrases=evidence.get("phrases"),
        heads=[
            {
                **head,
                "images": images.get((head["layer"], head["head"])),
                "kept": kept.get((head["layer"], head["head"]), ""),
                "top": max(head["share"].values(), default=None),
                "word": head["attribute"] or head["concept"] or "–",
                "mark": share_mark(HeadRole(head["layer"], head["head"], head["role"], share=head["share"])),
                "nats": head["entropy"],
                "entropy": "–" if head["entropy"] is None else f"{head['entropy']:.2f}",
                "parts": [
                    (concept, f"{100 * share:.0f}") for concept, share in head["share"].items() if share > 0
                ],
            }
            for head in heads
        ],
        settings=[(key, _plain(value)) for key, value in table["settings"].items()],
    )


def _counts(heads: Any) -> list[tuple[str, int]]:
    roles = ("core", "other-specialized", "mixed", "generalization")
    return [(role, sum(head["role"] == role for head in heads)) for role in roles]


def _plain(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
