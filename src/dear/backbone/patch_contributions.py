"""Where a head looks: its contribution to the image embedding as a sum over the tokens that it reads."""

from collections.abc import Iterator, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from dear.backbone.attention import attention_weights
from dear.backbone.head_contributions import EmbeddingMap, FrozenBlock, written_rows
from dear.backbone.vision import VisionTower


@torch.no_grad()
def patch_contributions(
    tower: VisionTower,
    images: Float[Tensor, "batch 3 height width"],
    layers: Sequence[int],
    directions: Float[Tensor, "layer head embed"],
) -> Float[Tensor, "batch layer head token"]:
    """What each token adds to the projection of each head's contribution onto the head's direction. The class
    token comes first if the tower has one, then the patches by rows.

    A head writes to the class token the sum over tokens of attention weight times value, so its contribution
    is a sum over the tokens. The sum over tokens is the head's contribution by `head_contributions` in the
    exact convention. Where the embedding is pooled, the weights of the pool are fixed to their values.

    Source: Gandelsman et al., ICLR 2024, section 4 (image tokens).
    """
    found = dict[int, Tensor]()
    for layer, read, value, rows in _sources(tower, images, layers):
        direction = directions[layers.index(layer)].to(rows)
        functional = torch.einsum("hvde,he->hvd", rows, direction).to(value)
        found[layer] = torch.einsum("bvhs,bhsd,hvd->bhs", read, value, functional)
    return torch.stack([found[layer] for layer in layers], dim=1)


@torch.no_grad()
def class_token_contributions(
    tower: VisionTower, images: Float[Tensor, "batch 3 height width"], layers: Sequence[int]
) -> Float[Tensor, "batch layer embed"]:
    """What the heads of each layer contribute to the image embedding by reading the class token alone; zero
    for a tower without one.
    """
    if not tower.has_class_token:
        return torch.zeros(len(images), len(layers), tower.embed_dim).to(tower.projection)
    found = {
        layer: torch.einsum("bvh,bhd,hvde->be", read[..., 0], value[:, :, 0], rows.to(value))
        for layer, read, value, rows in _sources(tower, images, layers)
    }
    return torch.stack([found[layer] for layer in layers], dim=1)


def _sources(
    tower: VisionTower, images: Float[Tensor, "batch 3 height width"], layers: Sequence[int]
) -> Iterator[tuple[int, Tensor, Tensor, Tensor]]:
    """Of each of the layers, lowest first: its number, the weight with which the embedding reads each token
    through each head (batch pool_head head token), the tokens' values (batch head token dim), and what a
    value writes to the embedding (head pool_head dim embed).
    """
    x, rotation = tower.embed(images), tower.rotations()
    last = tower.layers(x, 1, tower.depth)
    finish = EmbeddingMap(tower, last if tower.has_class_token else last[:, 1:])
    x = x if tower.has_class_token else x[:, 1:]
    for layer in range(1, max(layers) + 1):
        block = tower.block(layer)
        query, key, value = block.query_key_value(x, rotation=rotation)
        weights = attention_weights(query, key)
        by_head = weights @ value
        if layer in layers:
            by_target = FrozenBlock(block, by_head).factor * weights.transpose(1, 2).flatten(2)
            read = by_target[:, :1] if tower.pool is None else finish.gather(by_target)
            if finish.scale is not None:
                read = read * finish.scale.view(-1, 1, 1)
            rows = written_rows(tower, layer)
            read = read.unflatten(-1, (block.heads, -1))
            yield layer, read, value, rows.unflatten(1, (read.shape[1], -1))
        x = x + block.attention_update(by_head)
        x = x + block.mlp_update(x)
