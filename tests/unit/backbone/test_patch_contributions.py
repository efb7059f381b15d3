"""Contributions by token: they add up to the head's in towers of every kind, and in CLIP's own each is the
one computed by hand.
"""

import pytest
import torch

from dear.backbone.head_contributions import head_contributions
from dear.backbone.patch_contributions import class_token_contributions, patch_contributions
from tests.unit.backbone.shrunk import KINDS, made


@pytest.mark.parametrize("name", KINDS.values(), ids=KINDS)
def test_the_tokens_of_a_head_add_up_to_its_contribution(name: str) -> None:
    tower, images = made(name)
    layers = [tower.depth, 1]
    shape = (len(layers), tower.heads, tower.embed_dim)
    directions = torch.randn(shape, generator=torch.Generator().manual_seed(1)).double()
    found = patch_contributions(tower, images, layers, directions)
    assert found.shape == (2, 2, tower.heads, tower.side**2 + tower.has_class_token)
    heads = head_contributions(tower, images, layers).heads
    wanted = torch.einsum("blhe,lhe->blh", heads, directions)
    torch.testing.assert_close(found.sum(dim=-1), wanted, rtol=0, atol=1e-10)
    of_class = class_token_contributions(tower, images, layers)
    assert bool(of_class.any()) == tower.has_class_token
    if tower.has_class_token:
        same = directions.mean(dim=1, keepdim=True).expand(shape)
        by_token = patch_contributions(tower, images, layers, same)[..., 0].sum(dim=-1)
        torch.testing.assert_close(
            torch.einsum("ble,le->bl", of_class, same[:, 0]), by_token, rtol=0, atol=1e-10
        )


def test_a_token_by_hand() -> None:
    """Weight times value, through the head's slice of the output projection, the last LayerNorm with its
    statistics fixed, and the projection.
    """
    tower, images = made("ViT-B-16")
    layer, head, token = tower.depth, 1, 3
    directions = torch.randn(
        1, tower.heads, tower.embed_dim, generator=torch.Generator().manual_seed(2)
    ).double()
    x = tower.trunk(images, layer)
    block, norm, dim = tower.block(layer), tower.ln_final, tower.width // tower.heads
    query, key, value = (
        part[:, :, head * dim : (head + 1) * dim]
        for part in (block.ln_1(x) @ block.in_proj_weight.T + block.in_proj_bias).chunk(3, dim=-1)
    )
    weights = (query[:, :1] @ key.mT / dim**0.5).softmax(dim=-1)[:, 0, token]
    written = weights[:, None] * value[:, token] @ block.out_proj.weight[:, head * dim : (head + 1) * dim].T
    last = block(x)[:, 0]
    deviation = (last.var(dim=-1, unbiased=False, keepdim=True) + norm.eps).sqrt()
    embedded = (written - written.mean(dim=-1, keepdim=True)) / deviation * norm.weight @ tower.projection
    found = patch_contributions(tower, images, [layer], directions)[:, 0, head, token]
    torch.testing.assert_close(found, embedded @ directions[0, head], rtol=0, atol=1e-12)
