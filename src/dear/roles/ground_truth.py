"""Roles of the tiny CLIP's heads from the Attribute World's known factors: which factor a head's
contribution varies with.

This needs no phrases and no clusters: the true factors of each image are known. It is a table of its own
kind (source "ground-truth factors"), to judge discovered roles against and to run the demo with.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dear.backbone.clip import Clip, span_start
from dear.backbone.taps import head_contributions
from dear.data.world.factors import FACTOR_NAMES, SIZES
from dear.data.world.render import render
from dear.data.world.scene import draw_scenes
from dear.roles.table import HeadRole, RoleTable


@dataclass(frozen=True)
class GroundTruthSettings:
    """Settings of the ground-truth table.

    Attributes:
        images: Images drawn, of pretraining's combinations.
        first: First analysed layer in a tower of 12.
        core: A head is core if its dominant factor has at least this share of what the factors explain of
            its variance.
        general: A head is general if its share entropy is in this top fraction of the heads that are not
            core.
        seed: Seed of the images; no task uses it.
    """

    images: int = 6000
    first: int = 9
    core: float = 0.5
    general: float = 0.2
    seed: int = 2_000_003


def explained_variance(values: Float[Tensor, "item width"], groups: Int[Tensor, "item"], count: int) -> float:
    """Share of the total variance (trace) of ``values`` that lies between groups, corrected for chance
    (epsilon squared), at least 0.

    Source: epsilon squared = (SS_between - (k - 1) MS_within) / SS_total, over k groups (Kelley, 1935).
    """
    values = values.double() - values.double().mean(dim=0)
    total = values.square().sum()
    sizes = torch.zeros(count, dtype=torch.double).index_add(
        0, groups, torch.ones(len(groups), dtype=torch.double)
    )
    sums = torch.zeros(count, values.shape[1], dtype=torch.double).index_add(0, groups, values)
    present = sizes > 0
    between = (sums[present].square().sum(dim=1) / sizes[present]).sum()
    k = int(present.sum())
    within = (total - between) / (len(values) - k)
    return max(0.0, float((between - (k - 1) * within) / total))


def entropy(shares: Sequence[float]) -> float:
    """Entropy in nats of a distribution."""
    p = torch.tensor([s for s in shares if s > 0], dtype=torch.double)
    return float(-(p * p.log()).sum())


def roles_from_factors(
    clip: Clip, settings: GroundTruthSettings | None = None, *, batch: int = 250
) -> RoleTable:
    """Role table of a CLIP by the factors of the Attribute World.

    A head's share of factor f is the variance of its contribution to the embedding that f explains,
    divided by the sum over factors.
    """
    s = settings or GroundTruthSettings()
    layers = list(range(span_start(clip.image.depth, s.first), clip.image.depth + 1))
    heads, factors = [], []
    for start in range(0, s.images, batch):
        scene = draw_scenes(
            s.seed, torch.arange(start, min(start + batch, s.images)), combinations="pretraining"
        )
        pixels = clip.normalize_pixels(render(scene, clip.image_size).to(clip.image.projection) / 255)
        with torch.no_grad():
            heads.append(head_contributions(clip.image, pixels, layers).heads.cpu())
        factors.append(scene.factors.cpu())
    contributions, known = torch.cat(heads), torch.cat(factors)
    found = []
    for at, layer in enumerate(layers):
        for head in range(clip.image.heads):
            raw = [
                explained_variance(contributions[:, at, head], known[:, f], SIZES[f])
                for f in range(len(SIZES))
            ]
            found.append((layer, head, raw))
    return RoleTable(
        source="ground-truth factors",
        weights=clip.identity,
        attributes=FACTOR_NAMES,
        heads=tuple(assign(found, core=s.core, general=s.general)),
        settings={"images": s.images, "first": s.first, "core": s.core, "general": s.general, "seed": s.seed},
    )


def assign(
    found: Sequence[tuple[int, int, Sequence[float]]], *, core: float, general: float
) -> list[HeadRole]:
    """Roles from each (layer, head, explained variance by factor): core by dominance, general by entropy,
    the rest mixed.
    """
    rows = []
    for layer, head, raw in found:
        total = sum(raw)
        shares = [r / total if total > 0 else 1 / len(raw) for r in raw]
        rows.append((layer, head, shares, entropy(shares)))
    rest = sorted((e for _, _, shares, e in rows if max(shares) < core), reverse=True)
    cut = (
        rest[max(0, round(general * len(rest)) - 1)]
        if rest and round(general * len(rest)) > 0
        else float("inf")
    )
    out = []
    for layer, head, shares, e in rows:
        concept = FACTOR_NAMES[max(range(len(shares)), key=shares.__getitem__)]
        share = {name: round(value, 4) for name, value in zip(FACTOR_NAMES, shares, strict=True)}
        if max(shares) >= core:
            out.append(HeadRole(layer, head, "core", concept, concept, round(e, 4), share))
        else:
            out.append(
                HeadRole(
                    layer, head, "generalization" if e >= cut else "mixed", None, concept, round(e, 4), share
                )
            )
    return out
