"""Head contributions: CLIP's image embedding as a sum over layers and heads (Gandelsman et al., 2024)."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from dear.backbone.block import Block
from dear.backbone.towers import VisionTower


@dataclass(frozen=True)
class Contributions:
    """What each head and each MLP of some layers adds to the image embedding, and the rest.

    An MLP's biases are its own. ``rest`` holds the input of layer 1, the biases of the output projections
    and of the final LayerNorm, and everything the other layers add. [ours] Gandelsman et al. spread the
    constant biases over heads and tokens, which only shifts means: TEXTSPAN and mean ablation give the same
    results.
    """

    layers: tuple[int, ...]
    heads: Float[Tensor, "batch layer head embed"]
    mlps: Float[Tensor, "batch layer embed"]
    rest: Float[Tensor, "batch embed"]

    def total(self) -> Float[Tensor, "batch embed"]:
        """The sum of all terms: the image embedding, not normalised."""
        return self.heads.sum(dim=(1, 2)) + self.mlps.sum(dim=1) + self.rest


@torch.no_grad()
def head_contributions(
    tower: VisionTower, images: Float[Tensor, "batch 3 height width"], layers: Sequence[int]
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
            rest = rest + block.ls_1(block.out_proj.bias)
        else:
            rest = rest + attention[:, 0] + mlp[:, 0]
        x = x + attention + mlp
    embed = FrozenFinish(tower, x[:, 0])
    return Contributions(
        tuple(layers),
        embed(torch.stack([heads[layer] for layer in layers], dim=1)),
        embed(torch.stack([mlps[layer] for layer in layers], dim=1)),
        embed(rest) + embed.bias,
    )


def projected_heads(
    block: Block, outputs: Float[Tensor, "batch head dim"]
) -> Float[Tensor, "batch head width"]:
    """What each head adds to the residual stream: its slice of the output projection, without the bias."""
    weight = block.out_proj.weight.unflatten(1, (block.heads, -1))
    added: Tensor = block.ls_1(torch.einsum("bhd,whd->bhw", outputs, weight))
    return added


class FrozenFinish:
    """The final LayerNorm and projection as a linear map: statistics from ``final``, bias separate."""

    def __init__(self, tower: VisionTower, final: Float[Tensor, "batch width"]) -> None:
        norm = tower.ln_final
        assert isinstance(norm, nn.LayerNorm)
        self.deviation = (final.var(dim=-1, unbiased=False) + norm.eps).sqrt()
        self.projection = norm.weight.unsqueeze(1) * tower.projection
        self.bias: Tensor = norm.bias @ tower.projection

    def __call__(self, terms: Float[Tensor, "batch *any width"]) -> Float[Tensor, "batch *any embed"]:
        centred = terms - terms.mean(dim=-1, keepdim=True)
        deviation = self.deviation.view(-1, *[1] * (terms.ndim - 1))
        return centred / deviation @ self.projection
