"""Head contributions: CLIP's image embedding as a sum over layers and heads (Gandelsman et al., 2024)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from dear.backbone.block import Block
from dear.backbone.towers import VisionTower

Convention = Literal["public", "exact"]
"""How constants are divided among the terms: as in the public code, or each with what it belongs to."""
NEGLIGIBLE = 1e-6
"""Share of the largest singular value up to which a direction is taken for rounding."""


@dataclass(frozen=True)
class Contributions:
    """What each head and each MLP of some layers adds to the image embedding, and the rest.

    The conventions differ in the terms that belong to no head. "exact" [ours]: a term is centred by its own
    mean; an MLP keeps its biases; ``rest`` holds the input of layer 1, the biases of the output projections
    and of the final LayerNorm, and everything the other layers add. The sum is the embedding. "public": the
    bias of an output projection is shared equally by its heads, the mean of the final residual and the bias
    of the final LayerNorm by all terms (2 x depth + 1, a layer's share again by its heads), and all terms
    are divided by the length of the embedding. The sum is the unit embedding.

    The difference of a head's contributions depends on the image, through the final deviation and the
    length, so TEXTSPAN may choose other phrases (docs/roles-study.md has counts).

    Source of "public": Gandelsman et al., ICLR 2024; yossigandelsman/clip_prs at e122b8a, prs_hook.py.
    """

    layers: tuple[int, ...]
    heads: Float[Tensor, "batch layer head embed"]
    mlps: Float[Tensor, "batch layer embed"]
    rest: Float[Tensor, "batch embed"]

    def total(self) -> Float[Tensor, "batch embed"]:
        """The sum of all terms: the image embedding, in the public convention of unit length."""
        return self.heads.sum(dim=(1, 2)) + self.mlps.sum(dim=1) + self.rest


@torch.no_grad()
def head_contributions(
    tower: VisionTower,
    images: Float[Tensor, "batch 3 height width"],
    layers: Sequence[int],
    convention: Convention = "exact",
) -> Contributions:
    """Contributions of the heads and MLPs of ``layers`` (counted from 1) to the class token's embedding.

    A head's contribution is the sum over its source tokens. The final LayerNorm is linear once its mean and
    deviation are fixed to those of the full forward pass, so the terms add up to the embedding. Raises
    ValueError if ``layers`` is empty, repeats a layer or names one that does not exist.
    """
    if not layers or len(set(layers)) < len(layers) or not all(1 <= one <= tower.depth for one in layers):
        raise ValueError(f"layers must be distinct and between 1 and {tower.depth}, got {list(layers)}")
    x = tower.embed(images)
    rest = x[:, 0]
    heads: dict[int, Tensor] = {}
    mlps: dict[int, Tensor] = {}
    for layer, block in enumerate(tower.blocks, start=1):
        assert isinstance(block, Block)
        by_head = block.head_outputs(x)
        attention = block.ls_1(block.out_proj(by_head.transpose(1, 2).flatten(2)))
        mlp = block.ls_2(block.mlp(block.ln_2(x + attention)))
        if layer in layers:
            heads[layer], mlps[layer] = projected_heads(block, by_head[:, :, 0]), mlp[:, 0]
            bias = block.ls_1(block.out_proj.bias)
            if convention == "public":
                heads[layer] = heads[layer] + bias / block.heads
            else:
                rest = rest + bias
        else:
            rest = rest + attention[:, 0] + mlp[:, 0]
        x = x + attention + mlp
    finish = FrozenFinish(tower, x[:, 0])
    of_heads = torch.stack([heads[layer] for layer in layers], dim=1)
    of_mlps = torch.stack([mlps[layer] for layer in layers], dim=1)
    if convention == "exact":
        return Contributions(tuple(layers), finish(of_heads), finish(of_mlps), finish(rest) + finish.bias)
    terms, embedding = 2 * tower.depth + 1, tower.finish(x[:, 0])
    parts = (finish.share(of_heads, 1 / (terms * tower.heads)), finish.share(of_mlps, 1 / terms))
    length = embedding.norm(dim=-1)
    by_head, by_mlp = (one / length.view(-1, *[1] * (one.ndim - 1)) for one in parts)
    rest = embedding / length.unsqueeze(1) - by_head.sum(dim=(1, 2)) - by_mlp.sum(dim=1)
    return Contributions(tuple(layers), by_head, by_mlp, rest)


def projected_heads(
    block: Block, outputs: Float[Tensor, "batch head dim"]
) -> Float[Tensor, "batch head width"]:
    """What each head adds to the residual stream: its slice of the output projection, without the bias."""
    weight = block.out_proj.weight.unflatten(1, (block.heads, -1))
    added: Tensor = block.ls_1(torch.einsum("bhd,whd->bhw", outputs, weight))
    return added


@torch.no_grad()
def written_subspace(tower: VisionTower, heads: Sequence[tuple[int, int]]) -> Float[Tensor, "rank embed"]:
    """Orthonormal rows, in float64, that span all that heads (layer from 1, head from 0) can contribute.

    A head of output map W (width, dim) contributes (W z - mean) / deviation * gain @ projection for some z:
    its contributions lie in the span of dim vectors, whatever the image. The rows are the right singular
    vectors of all these vectors whose singular value is above a millionth of the largest. In the exact
    convention only.
    """
    gain, projection = tower.ln_final.weight.cpu().double(), tower.projection.cpu().double()
    rows = []
    for layer, head in heads:
        block = tower.blocks[layer - 1]
        assert isinstance(block, Block)
        weight = block.out_proj.weight.unflatten(1, (block.heads, -1))[:, head]
        written = block.ls_1(weight.T).cpu().double()
        written = written - written.mean(dim=-1, keepdim=True)
        rows.append(written * gain @ projection)
    _, values, right = torch.linalg.svd(torch.cat(rows), full_matrices=False)
    spanning: Tensor = right[values > NEGLIGIBLE * values[0]]
    return spanning


class FrozenFinish:
    """The final LayerNorm and projection as a linear map: statistics from ``final``, bias separate."""

    def __init__(self, tower: VisionTower, final: Float[Tensor, "batch width"]) -> None:
        norm = tower.ln_final
        assert isinstance(norm, nn.LayerNorm)
        self.mean = final.mean(dim=-1)
        self.deviation = (final.var(dim=-1, unbiased=False) + norm.eps).sqrt()
        self.projection = norm.weight.unsqueeze(1) * tower.projection
        self.bias: Tensor = norm.bias @ tower.projection

    def __call__(self, terms: Float[Tensor, "batch *any width"]) -> Float[Tensor, "batch *any embed"]:
        """Terms centred by their own means, without the bias."""
        return self._scaled(terms - terms.mean(dim=-1, keepdim=True))

    def share(
        self, terms: Float[Tensor, "batch *any width"], part: float
    ) -> Float[Tensor, "batch *any embed"]:
        """Terms that each bear this part of the mean of ``final`` and of the bias."""
        return self._scaled(terms - part * self._over(self.mean, terms)) + part * self.bias

    def _scaled(self, terms: Tensor) -> Tensor:
        return terms / self._over(self.deviation, terms) @ self.projection

    def _over(self, values: Float[Tensor, "batch"], terms: Tensor) -> Tensor:
        return values.view(-1, *[1] * (terms.ndim - 1))
