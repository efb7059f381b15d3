"""What carries the image embedding: heads by what they read, MLPs, and the rest, as shares that add up.

The embedding is a sum of terms. The share of a term is its covariance with the embedding over images, summed
over dimensions, divided by the variance of the embedding: shares are additive, and all of them sum to 1. A
term that is the same for all images has none; a term that the others undo has a negative one [ours].
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from dear.backbone.clip import Clip
from dear.backbone.head_contributions import head_contributions
from dear.backbone.patch_contributions import class_token_contributions
from dear.data.dataset import Images
from dear.data.fewshot import Subset
from dear.progress import Progress, silent
from dear.roles.ablation import SAMPLE
from dear.roles.decompose import batches, evenly_spaced


@dataclass(frozen=True)
class LayerTerms:
    """Shares of the embedding's variance: of a layer's heads by reading patches, of its heads by reading the
    class token, and of its MLP.
    """

    layer: int
    patches: float
    class_token: float
    mlp: float


@dataclass(frozen=True)
class EmbeddingTerms:
    """The terms of all layers, over some images; ``rest`` is the input of layer 1 and all constants."""

    images: int
    layers: tuple[LayerTerms, ...]
    rest: float


@torch.no_grad()
def embedding_terms(clip: Clip, images: Images, *, progress: Progress = silent) -> EmbeddingTerms:
    """The shares of all terms, over at most `SAMPLE` evenly spaced images."""
    chosen = Subset(images, evenly_spaced(len(images), SAMPLE))
    tower, done = clip.image, 0
    layers = range(1, tower.depth + 1)
    products = total = torch.zeros(())
    for pixels in batches(clip, chosen, 50):
        terms = head_contributions(tower, pixels, layers)
        of_class = class_token_contributions(tower, pixels, layers)
        of_patches = terms.heads.sum(dim=2) - of_class
        parts = torch.cat([of_patches, of_class, terms.mlps, terms.remainder.unsqueeze(1)], dim=1)
        parts = parts.double().cpu()  # batch term embed
        products = products + _inner(parts, parts.sum(dim=1, keepdim=True)).sum(dim=0)
        total = total + parts.sum(dim=0)
        done += len(pixels)
        progress("terms", done, len(chosen))
    mean: Float[Tensor, "term embed"] = total / len(chosen)
    covariances = products / len(chosen) - _inner(mean, mean.sum(dim=0, keepdim=True))
    variance = covariances.sum()
    shares = covariances / variance if variance > 0 else torch.zeros_like(covariances)
    *of_layers, rest = shares.tolist()
    depth = tower.depth
    rows = zip(layers, of_layers[:depth], of_layers[depth : 2 * depth], of_layers[2 * depth :], strict=True)
    return EmbeddingTerms(len(chosen), tuple(LayerTerms(*row) for row in rows), rest)


def _inner(
    parts: Float[Tensor, "*batch term embed"], whole: Float[Tensor, "*batch 1 embed"]
) -> Float[Tensor, "*batch term"]:
    return (parts * whole).sum(dim=-1)
