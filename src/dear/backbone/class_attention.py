"""Where the heads of the image tower look: attention from the class token to the patches."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from dear.backbone.attention import attention_weights
from dear.backbone.block import Block
from dear.backbone.towers import VisionTower


@torch.no_grad()
def class_attention(
    tower: VisionTower, images: Float[Tensor, "batch 3 height width"], layers: Sequence[int]
) -> Float[Tensor, "batch layer head row column"]:
    """Attention weights of the class token to each patch in the heads of ``layers`` (counted from 1), of the
    frozen tower. The weight that is missing to one is the class token's own. ``layers`` are taken as valid.
    """
    side = tower.image_size // tower.patch_size
    x = tower.embed(images)
    found: dict[int, Tensor] = {}
    for layer, block in enumerate(tower.blocks[: max(layers)], start=1):
        assert isinstance(block, Block)
        if layer in layers:
            query, key, _ = block.query_key_value(x, x[:, :1])
            found[layer] = attention_weights(query, key)[:, :, 0, 1:].unflatten(-1, (side, side))
        if layer < max(layers):
            x = block(x)
    return torch.stack([found[layer] for layer in layers], dim=1)
