"""Role discovery: find the role of every head in a CLIP's last layers from images (`discover`), or from the
training images of a data set with the usual settings, when a CLIP has no role table (`discover_at_hand`).
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import normalize

from dear.backbone.choice import TINY
from dear.backbone.clip import Clip
from dear.backbone.head_contributions import Convention
from dear.data.dataset import Dataset, Images
from dear.data.fewshot import Subset
from dear.errors import DataError, SettingsError, plural, warn
from dear.progress import Progress, silent
from dear.roles.ablation import layer_curve
from dear.roles.build import build_table, require_concepts
from dear.roles.decompose import Decomposition, analysed_layers, decompose, head_rank, spread
from dear.roles.phrases import GENERAL, WORLD, Pool, general_pool, load_pool
from dear.roles.settings import RoleSettings
from dear.roles.table import Head, RoleTable
from dear.roles.textspan import Span, enough_images, textspan
from dear.roles.trust import doubts

TEXT_BATCH = 256
DISCOVER = "discover"
MAX_IMAGES = 10_000
"""As many images as `dear roles discover` uses by default."""
FEW_IMAGES = 1000
"""Fewer images than this cause a warning [ours]: roles were stable for 10,000 (docs/roles.md)."""


def span_heads(
    clip: Clip,
    decomposition: Decomposition,
    text: Float[Tensor, "phrase embed"],
    *,
    rank: int = 80,
    top: int | None = None,
    convention: Convention = "exact",
) -> Span:
    """The ``top`` phrases that span each head, in greedy order, at most one per dimension of a head; ``text``
    are the phrases' embeddings.

    By default a third of the dimensions [ours], 21 of 64: the last phrases of a full span only fill the
    remaining directions and say little about the head.
    """
    rank, width = head_rank(clip, rank, convention), clip.image.width // clip.image.heads
    top = min(max(3, width // 3) if top is None else top, rank, width, len(text))
    return textspan(decomposition.moments, text, rank=rank, top=top)


def phrases_of(layers: Sequence[int], span: Span, pool: Pool) -> dict[Head, tuple[str, ...]]:
    """The phrases of each head of the layers."""
    return {
        (layer, head): tuple(pool.phrases[int(i)] for i in span.phrases[at, head])
        for at, layer in enumerate(layers)
        for head in range(span.phrases.shape[1])
    }


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
    named: Pool | None = None,
    layers: Sequence[int] | None = None,
    rank: int = 80,
    top: int | None = None,
    settings: RoleSettings | None = None,
    sentence_model: str | None = None,
    keep: Path | None = None,
    batch: int = 100,
    facts: dict[str, Any] | None = None,
    inspect: Callable[[Decomposition, Span], None] | None = None,
    progress: Progress = silent,
) -> RoleTable:
    """The role table of a CLIP: decompose, TEXTSPAN, concept clusters, entropy, roles.

    TEXTSPAN chooses phrases from ``pool``; those of ``named`` name the concepts: by default ``pool`` itself
    if it has concepts, else the general pool. ``keep`` is a file for each image's contributions. ``inspect``
    is called with the decomposition and the span. Deterministic. Raises the errors of its steps.
    """
    if top is not None and top < 1:
        raise SettingsError(f"{top} phrases per head: give --phrases-a-head at least 1, or omit it.")
    analysed, settings = analysed_layers(clip, layers), settings or RoleSettings()
    convention = settings.convention
    enough_images(len(images), head_rank(clip, rank, convention))
    concepts = named or (pool if pool.concepts else None)
    require_concepts(concepts or general_pool(), settings)  # before the images are read
    progress("contributions", 0, len(images))
    decomposition = decompose(
        clip,
        images,
        analysed,
        convention=convention,
        keep=keep,
        coordinates=inspect is not None,
        batch=batch,
        progress=progress,
    )
    progress("phrases", 0, 1)
    text = embed_text(clip, pool.phrases)
    span = span_heads(clip, decomposition, text, rank=rank, top=top, convention=convention)
    heads = phrases_of(analysed, span, pool)
    progress("phrases", 1, 1)
    if inspect is not None:
        inspect(decomposition, span)
    progress("concepts", 0, 1)
    table = build_table(
        heads,
        clip.identity,
        source=f"discovered (TEXTSPAN over {len(images)} images, {len(pool)} phrases)",
        named=concepts,
        settings=settings,
        sentence_model=sentence_model,
        facts={
            "images": len(images),
            "images_identity": images.identity,
            "phrases_from": pool.name,
            "layers": list(analysed),
            "rank": head_rank(clip, rank, convention),
            "phrases_a_head": len(next(iter(heads.values()))),
            **(facts or {}),
        },
    )
    progress("concepts", 1, 1)
    return table


def usual_pool(clip: Clip) -> Pool:
    """The phrases by which roles of a CLIP are found by default."""
    return load_pool(WORLD if clip.identity.model == TINY else GENERAL)


def discover_at_hand(clip: Clip, dataset: Dataset, progress: Progress = silent) -> RoleTable:
    """The role table of a CLIP from a data set's training images, without their labels, with the usual
    settings.

    Warns, in a line each, of few images and of a table that is not to be trusted (`dear.roles.trust.doubts`).
    Raises DataError for fewer images than a head has dimensions, and the errors of `discover`.
    """
    images = _training_images(clip, dataset)
    table = discover(clip, images, usual_pool(clip), facts={"data": dataset.name}, progress=progress)
    lines = doubts(table, layer_curve(clip, images, analysed_layers(clip), progress=progress))
    if len(images) < FEW_IMAGES:
        lines.insert(
            0, f"{plural(len(images), 'image')} may be too few to find roles from (below {FEW_IMAGES})."
        )
    for line in lines:
        warn(f"roles: {line}")
    return table


def _training_images(clip: Clip, dataset: Dataset) -> Subset:
    """The images to use, evenly spread. Raises DataError for too few."""
    minimum = head_rank(clip, convention=RoleSettings().convention)
    if len(dataset.train) < minimum:
        raise DataError(
            f"{dataset.name} has {len(dataset.train)} training images, too few to find the roles of heads: "
            f"at least {minimum}, better {FEW_IMAGES} or more. Find them on other images with `dear roles "
            "discover --data IMAGES` and give the table with --roles FILE."
        )
    return Subset(dataset.train, spread(len(dataset.train), MAX_IMAGES))
