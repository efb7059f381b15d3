"""What the page of a role table shows beside the table: the heads of a CLIP on images."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from dear.backbone.clip import Clip
from dear.data.dataset import Images
from dear.progress import Progress, silent
from dear.roles.ablation import LayerCurve, layer_curve
from dear.roles.decompose import Decomposition, decompose
from dear.roles.discover import embed_text
from dear.roles.pictures import HeadGallery, build_gallery
from dear.roles.table import RoleTable
from dear.roles.terms import EmbeddingTerms, embedding_terms


@dataclass(frozen=True)
class Inspection:
    """What the heads carry, by mean ablation and by terms, and their images; None if it was not computed."""

    curve: LayerCurve | None = None
    terms: EmbeddingTerms | None = None
    gallery: HeadGallery | None = None


def inspect_heads(
    clip: Clip,
    table: RoleTable,
    images: Images,
    *,
    a_head: int = 10,
    name: Callable[[int], str] = "image {}".format,
    found: tuple[Decomposition, Float[Tensor, "layer head embed"]] | None = None,
    progress: Progress = silent,
) -> Inspection:
    """Inspect the heads of a table on images, of which ``name`` names each by its number. ``found`` are the
    decomposition and the directions of a discovery on these images; else the direction of a head is the text
    embedding of its first phrase, and a head without phrases has no images. Raises RoleTableError for a table
    of another CLIP, SettingsError for ``a_head``.
    """
    table.check(clip.identity)
    layers = tuple(sorted({head.layer for head in table.heads}))
    gallery = None
    if a_head:
        if found is None:
            convention = table.settings.get("convention", "exact")
            parts = decompose(
                clip, images, layers, convention=convention, coordinates=True, progress=progress
            )
            found = parts, _directions(clip, table, layers)
        gallery = build_gallery(clip, images, *found, a_head=a_head, name=name, progress=progress)
    curve = layer_curve(clip, images, layers, progress=progress)
    return Inspection(curve, embedding_terms(clip, images, progress=progress), gallery)


def _directions(clip: Clip, table: RoleTable, layers: tuple[int, ...]) -> Float[Tensor, "layer head embed"]:
    """The text embedding of each head's first phrase; zero without one."""
    directions = torch.zeros(len(layers), clip.image.heads, clip.image.embed_dim)
    heads = [head for head in table.heads if head.phrases]
    if heads:
        text = embed_text(clip, [head.phrases[0] for head in heads]).float().cpu()
        for head, direction in zip(heads, text, strict=True):
            directions[layers.index(head.layer), head.head] = direction
    return directions
