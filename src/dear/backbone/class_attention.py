"""Where the heads of the image tower look: attention to the patches from what the embedding is read at."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from dear.backbone.attention import attention_weights
from dear.backbone.block import Block
from dear.backbone.vision import VisionTower


@torch.no_grad()
def class_attention(
    tower: VisionTower, images: Float[Tensor, "batch 3 height width"], layers: Sequence[int]
) -> Float[Tensor, "batch layer head row column"]:
    """Attention weights of the class token to each patch in the heads of ``layers`` (counted from 1), of the
    frozen tower; the mean over all patches as queries where the embedding is pooled. The weight that is
    missing to one is the class token's own. ``layers`` are taken as valid.
    """
    x = tower.embed(images)
    first = 1
    if not tower.has_class_token:
        x, first = x[:, 1:], 0
    turn = tower.turn()
    found: dict[int, Tensor] = {}
    for layer, block in enumerate(tower.blocks[: max(layers)], start=1):
        assert isinstance(block, Block)
        if layer in layers:
            query, key, _ = block.query_key_value(x, turn=turn)
            query = query[:, :, :1] if tower.readout is None else query[:, :, first:]
            weights = attention_weights(query, key).mean(dim=2)
            found[layer] = weights[:, :, first:].unflatten(-1, (tower.side, tower.side))
        if layer < max(layers):
            x = block(x, turn=turn)
    return torch.stack([found[layer] for layer in layers], dim=1)
