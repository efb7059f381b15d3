"""Role discovery: find the role of every head in a CLIP's last layers from images (`discover`), or from the
training images of a data set with the usual settings, when a CLIP has no role table (`discover_at_hand`).
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import normalize

from dear.backbone.clip import Clip
from dear.backbone.names import TINY
from dear.data.dataset import Dataset, Images
from dear.data.fewshot import Subset
from dear.errors import DataError, warn
from dear.progress import Progress, silent
from dear.roles.ablation import layer_curve
from dear.roles.assign import build_table, require_concepts
from dear.roles.decompose import Decomposition, analyzed_layers, decompose, evenly_spaced, head_rank
from dear.roles.phrases import GENERAL, WORLD, Pool, general_pool, load_pool
from dear.roles.settings import RoleSettings
from dear.roles.table import RoleTable
from dear.roles.textspan import Span, enough_images, textspan
from dear.roles.trust import doubts
from dear.text import plural

TEXT_BATCH = 256
DISCOVER = "discover"
MAX_IMAGES = 10_000
"""As many images as `dear roles discover` uses by default."""
FEW_IMAGES = 1000
"""Fewer images than this cause a warning [ours]: roles were stable for 10,000 (docs/roles.md)."""


@torch.no_grad()
def embed_text(clip: Clip, phrases: Sequence[str]) -> Float[Tensor, "phrase embed"]:
    """Unit text embeddings of phrases."""
    parts = [
        normalize(clip.encode_text(phrases[i : i + TEXT_BATCH]), dim=-1)
        for i in range(0, len(phrases), TEXT_BATCH)
    ]
    return torch.cat(parts)


def discover(
    clip: Clip,
    images: Images,
    pool: Pool,
    *,
    layers: Sequence[int] | None = None,
    rank: int = 80,
    settings: RoleSettings | None = None,
    facts: dict[str, Any] | None = None,
    inspect: Callable[[Decomposition, Span], None] | None = None,
    progress: Progress = silent,
) -> RoleTable:
    """The role table of a CLIP: decompose, TEXTSPAN, concept clusters, entropy, roles.

    TEXTSPAN chooses ``phrases_a_head`` of the settings from ``pool``, in greedy order, at most one per
    dimension of a head; by default a third of these [ours], 21 of 64: the last phrases of a full span only
    fill the remaining directions and say little about the head. A user's phrases keep the concepts that they
    have; else clusters are named by those of ``pool``, or of the general pool if it has none. ``inspect`` is
    called with the decomposition and the span. Deterministic. Raises the errors of its steps.
    """
    analyzed, settings = analyzed_layers(clip, layers), settings or RoleSettings()
    convention = settings.convention
    rank, width = head_rank(clip, rank, convention), clip.image.width // clip.image.heads
    enough_images(len(images), rank)
    named = pool if pool.concepts else general_pool()
    require_concepts(named, settings)  # before the images are read
    progress("contributions", 0, len(images))
    decomposition = decompose(
        clip,
        images,
        analyzed,
        convention=convention,
        coordinates=inspect is not None,
        progress=progress,
    )
    progress("phrases", 0, 1)
    top = min(settings.phrases_a_head or max(3, width // 3), rank, width, len(pool))
    span = textspan(decomposition.moments, embed_text(clip, pool.phrases), rank=rank, top=top)
    heads = {
        (layer, head): tuple(pool.phrases[number] for number in numbers)
        for layer, of_layer in zip(analyzed, span.phrases.tolist(), strict=True)
        for head, numbers in enumerate(of_layer)
    }
    progress("phrases", 1, 1)
    if inspect is not None:
        inspect(decomposition, span)
    progress("concepts", 0, 1)
    table = build_table(
        heads,
        clip.identity,
        source=f"discovered (TEXTSPAN over {len(images)} images, {len(pool)} phrases)",
        named=named,
        settings=replace(settings, phrases_a_head=top),
        facts={
            "images": len(images),
            "images_identity": images.identity,
            "phrases_from": pool.name,
            "layers": list(analyzed),
            "rank": rank,
            **(facts or {}),
        },
    )
    progress("concepts", 1, 1)
    return table


def discover_at_hand(clip: Clip, dataset: Dataset, progress: Progress = silent) -> RoleTable:
    """The role table of a CLIP from a data set's training images, evenly spread, without their labels, with
    the usual settings.

    Warns, in a line each, of few images and of a table that is not to be trusted (`dear.roles.trust.doubts`).
    Raises DataError for fewer images than a head has dimensions, and the errors of `discover`.
    """
    minimum = head_rank(clip, convention=RoleSettings().convention)
    if len(dataset.train) < minimum:
        raise DataError(
            f"{dataset.name} has {len(dataset.train)} training images, too few to find the roles of heads: "
            f"at least {minimum}, better {FEW_IMAGES} or more. Find them on other images with `dear roles "
            "discover --data IMAGES` and give the table with --roles FILE."
        )
    images = Subset(dataset.train, evenly_spaced(len(dataset.train), MAX_IMAGES))
    pool = load_pool(WORLD if clip.identity.model == TINY else GENERAL)
    table = discover(clip, images, pool, facts={"data": dataset.name}, progress=progress)
    lines = doubts(table, layer_curve(clip, images, analyzed_layers(clip), progress=progress))
    if len(images) < FEW_IMAGES:
        lines.insert(
            0, f"{plural(len(images), 'image')} may be too few to find roles from (below {FEW_IMAGES})."
        )
    for line in lines:
        warn(f"roles: {line}")
    return table
