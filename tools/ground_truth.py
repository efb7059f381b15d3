"""Roles of the tiny CLIP's heads by the factor of the Attribute World that a head's contribution varies with.

This needs no phrases or clusters, because the true factors of each image are known. The table (source
"ground-truth factors") is a reference for discovered roles and is used by the demo.
"""

from collections.abc import Sequence
from itertools import product

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dear.backbone.clip import Clip, span_start
from dear.backbone.head_contributions import head_contributions
from dear.roles.assign import concept_entropy
from dear.roles.table import HeadRole, Role, RoleTable
from dear.world.factors import FACTOR_NAMES, SIZES
from dear.world.render import render
from dear.world.scene import draw_scenes

IMAGES, SEED, FIRST, CORE, GENERAL = 6000, 2_000_003, 9, 0.7, 0.2
"""Images of the combinations of pretraining, and the seed that draws them, which no task has; the first
analyzed layer in a tower of 12; the least share of its dominant factor in the variance that all factors
explain of a core head; the top fraction of heads by entropy that are generalization heads (the paper's q).
"""


def explained_variance(values: Float[Tensor, "item width"], groups: Int[Tensor, "item"], count: int) -> float:
    """Share of the total variance (trace) of ``values`` between groups, corrected for chance (epsilon
    squared), at least 0.

    Source: epsilon squared = (SS_between - (k - 1) MS_within) / SS_total, over k groups (Kelley, 1935).
    """
    values = values.double() - values.double().mean(dim=0)
    total = values.square().sum()
    sizes = groups.bincount(minlength=count)
    sums = torch.zeros(count, values.shape[1], dtype=torch.double).index_add(0, groups, values)
    present = sizes > 0
    between = (sums[present].square().sum(dim=1) / sizes[present]).sum()
    k = int(present.sum())
    within = (total - between) / (len(values) - k)
    return max(0.0, float((between - (k - 1) * within) / total))


@torch.no_grad()
def roles_from_factors(clip: Clip, images: int = IMAGES, batch: int = 250) -> RoleTable:
    """Role table of a CLIP by the factors of the Attribute World.

    A head's share of factor f is the variance of its contribution to the embedding that f explains,
    divided by the sum over factors.
    """
    layers = list(range(span_start(clip.image.depth, FIRST), clip.image.depth + 1))
    parts, factors = [], []
    for start in range(0, images, batch):
        index = torch.arange(start, min(start + batch, images))
        scene = draw_scenes(SEED, index, combinations="pretraining")
        pixels = clip.normalize_pixels(render(scene, clip.image_size).to(clip.image.projection) / 255)
        parts.append(head_contributions(clip.image, pixels, layers).heads.cpu())
        factors.append(scene.factors.cpu())
    contributions, known = torch.cat(parts), torch.cat(factors)
    explained = []
    for at, head in product(range(len(layers)), range(clip.image.heads)):
        values = contributions[:, at, head]
        by_factor = [explained_variance(values, known[:, f], size) for f, size in enumerate(SIZES)]
        explained.append((layers[at], head, by_factor))
    return RoleTable(
        source="ground-truth factors",
        weights=clip.identity,
        attributes=FACTOR_NAMES,
        heads=tuple(assign(explained, core=CORE, general=GENERAL)),
        settings={"images": images, "first": FIRST, "core": CORE, "general": GENERAL, "seed": SEED},
    )


def assign(
    found: Sequence[tuple[int, int, Sequence[float]]], *, core: float, general: float
) -> list[HeadRole]:
    """Roles from each (layer, head, explained variance by factor).

    The top fraction ``general`` of heads by entropy are generalization heads, as in the paper; of the others,
    those whose dominant factor has a share of at least ``core`` are core heads; the rest are mixed.
    """
    rows = []
    for layer, head, raw in found:
        total = sum(raw)
        shares = [r / total if total > 0 else 1 / len(raw) for r in raw]
        rows.append((layer, head, shares, concept_entropy(shares)))
    ranked = sorted(rows, key=lambda row: -row[3])
    broad = {(layer, head) for layer, head, _, _ in ranked[: round(general * len(rows))]}
    roles = []
    for layer, head, shares, entropy in rows:
        concept = FACTOR_NAMES[shares.index(max(shares))]
        role: Role = "mixed"
        if (layer, head) in broad:
            role = "generalization"
        elif max(shares) >= core:
            role = "core"
        share = {name: round(value, 4) for name, value in zip(FACTOR_NAMES, shares, strict=True)}
        attribute = concept if role == "core" else None
        roles.append(HeadRole(layer, head, role, attribute, concept, round(entropy, 4), share))
    return roles
