"""Role discovery: find the role of every head in a CLIP's last layers from images."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import normalize

from dear.backbone.clip import Clip
from dear.backbone.head_contributions import Convention
from dear.data.dataset import Images
from dear.data.seeds import checked_seed
from dear.errors import SettingsError
from dear.progress import Progress, silent
from dear.roles.build import build_table, require_concepts
from dear.roles.decompose import Decomposition, analysed_layers, decompose, head_rank, resampled
from dear.roles.entropy import Head
from dear.roles.phrases import Pool, general_pool
from dear.roles.settings import RoleSettings
from dear.roles.table import RoleTable
from dear.roles.textspan import Span, enough_images, textspan
from dear.roles.trust import with_stability

TEXT_BATCH = 256


def span_heads(
    clip: Clip,
    found: Decomposition,
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
    return textspan(found.moments, text, rank=rank, top=top)


def phrases_of(found: Decomposition, span: Span, pool: Pool) -> dict[Head, tuple[str, ...]]:
    """The phrases of each head by (layer, head)."""
    return {
        (layer, head): tuple(pool.phrases[int(i)] for i in span.phrases[at, head])
        for at, layer in enumerate(found.layers)
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
    bootstrap: int = 0,
    batch: int = 100,
    facts: dict[str, Any] | None = None,
    inspect: Callable[[Decomposition, Span], None] | None = None,
    progress: Progress = silent,
) -> RoleTable:
    """The role table of a CLIP: decompose, TEXTSPAN, concept clusters, entropy, roles.

    TEXTSPAN chooses phrases from ``pool``; those of ``named`` name the concepts: by default ``pool`` itself
    if it has concepts, else the general pool. ``keep`` is a file for each image's contributions. With
    ``bootstrap`` the phrases, concepts and roles are found again from so many samples of the images, drawn
    with replacement, for the same core attributes; the table's evidence then holds how often each head kept
    its role and its concept. Deterministic. Raises the errors of its steps.
    """
    if bootstrap < 0:
        raise SettingsError(f"bootstrap is {bootstrap}: it must be at least 0.")
    if top is not None and top < 1:
        raise SettingsError(f"{top} phrases per head: give --phrases-a-head at least 1, or omit it.")
    chosen, settings = analysed_layers(clip, layers), settings or RoleSettings()
    convention = settings.convention
    enough_images(len(images), head_rank(clip, rank, convention))
    named = named or (pool if pool.concepts else None)
    require_concepts(named or general_pool(), settings)  # before the images are read
    with TemporaryDirectory() if bootstrap and keep is None else nullcontext() as folder:
        kept = keep if folder is None else Path(folder) / "contributions.npy"
        progress("contributions", 0, len(images))
        found = decompose(
            clip,
            images,
            chosen,
            convention=convention,
            keep=kept,
            coordinates=inspect is not None,
            batch=batch,
            progress=progress,
        )
        progress("phrases", 0, 1)
        text = embed_text(clip, pool.phrases)
        span = span_heads(clip, found, text, rank=rank, top=top, convention=convention)
        heads = phrases_of(found, span, pool)
        progress("phrases", 1, 1)
        if inspect is not None:
            inspect(found, span)
        progress("concepts", 0, 1)
        table = build_table(
            heads,
            clip.identity,
            source=f"discovered (TEXTSPAN over {len(images)} images, {len(pool)} phrases)",
            named=named,
            settings=settings,
            sentence_model=sentence_model,
            facts={
                "images": len(images),
                "images_identity": images.identity,
                "phrases_from": pool.name,
                "layers": list(chosen),
                "rank": head_rank(clip, rank, convention),
                "phrases_a_head": len(next(iter(heads.values()))),
                **(facts or {}),
            },
        )
        progress("concepts", 1, 1)
        if not bootstrap:
            return table
        samples, fixed = [], replace(settings, attributes=table.attributes)
        drawing = torch.Generator().manual_seed(checked_seed(settings.seed))
        for number in range(bootstrap):
            progress("bootstrap", number, bootstrap)
            drawn = resampled(found, drawing)
            spans = span_heads(clip, drawn, text, rank=rank, top=top, convention=convention)
            samples.append(
                build_table(
                    phrases_of(drawn, spans, pool),
                    clip.identity,
                    source=f"bootstrap sample {number + 1}",
                    named=named,
                    settings=fixed,
                    sentence_model=sentence_model,
                    plane=False,
                )
            )
        progress("bootstrap", bootstrap, bootstrap)
    return with_stability(table, samples)
