"""Contributions in towers of every kind: they add up, and each is what its own head does to the embedding."""

import pytest
import torch
from torch import Tensor

from dear.backbone.convert import to_towers
from dear.backbone.head_contributions import (
    Convention,
    grouped_contributions,
    head_contributions,
)
from dear.backbone.vision import VisionTower
from tests.unit.backbone.shrunk import pixels, shrunk

KINDS = {
    "CLIP's own": "ViT-B-16",
    "a class token, blocks of timm": "MobileCLIP2-L-14",
    "a LayerNorm of the heads, rotary": "EVA02-B-16",
    "normalised last": "EVA02-E-14",
    "a mean": "ViT-L-14-CLIPA",
    "a mean of normalised tokens": "vit_medium_patch16_gap_256",
    "a mean on a convolutional stem": "ViTamin-S",
    "attention to the patches": "ViT-B-16-SigLIP",
    "attention to all tokens, rotary": "PE-Core-B-16",
    "attention without class token, rotary": "PE-Core-bigG-14-448",
}


def made(name: str) -> tuple[VisionTower, Tensor]:
    network = shrunk(name).double()
    return to_towers(network)[0].requires_grad_(False), pixels(network).double()


@pytest.mark.parametrize("name", KINDS.values(), ids=KINDS)
def test_the_terms_add_up_to_the_embedding(name: str) -> None:
    tower, images = made(name)
    embedding = tower(images)
    unit = torch.nn.functional.normalize(embedding, dim=-1)
    wanted: dict[Convention, Tensor] = {"exact": embedding, "public": unit}
    for layers in (range(1, tower.depth + 1), [tower.depth]):
        for convention, sum_of_terms in wanted.items():
            terms = head_contributions(tower, images, layers, convention)
            assert terms.heads.shape == (2, len(layers), tower.heads, tower.embed_dim)
            torch.testing.assert_close(terms.total(), sum_of_terms, rtol=0, atol=1e-10)


@pytest.mark.parametrize("name", KINDS.values(), ids=KINDS)
def test_groups_are_sums_of_contributions(name: str) -> None:
    """From the input of any layer, in one pass, with the embedding itself."""
    tower, images = made(name)
    for first in (1, tower.depth):
        layers = range(first, tower.depth + 1)
        generator = torch.Generator().manual_seed(1)
        shares = torch.rand(len(layers), tower.heads, 5, generator=generator, dtype=torch.float64)
        embedding, groups = grouped_contributions(tower, tower.trunk(images, first), first, shares)
        torch.testing.assert_close(embedding, tower(images), rtol=0, atol=1e-10)
        for group in range(5):
            expected = torch.zeros_like(embedding)
            contributions = head_contributions(tower, images, layers)
            for index in range(len(layers)):
                for head in range(tower.heads):
                    expected += shares[index, head, group] * contributions.heads[:, index, head]
            torch.testing.assert_close(groups[:, group], expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("name", KINDS.values(), ids=KINDS)
def test_a_contribution_is_the_derivative_along_what_the_head_writes(name: str) -> None:
    """The head's outputs of the last layer, scaled by 1 + e with everything else held fixed, by hand: pool
    weights and statistics of LayerNorms are taken once, and the rest of the way is plain arithmetic.
    """
    tower, images = made(name)
    found = head_contributions(tower, images, [tower.depth]).heads[:, 0]
    x = tower.trunk(images, tower.depth)
    x = x if tower.has_class_token else x[:, 1:]
    block, rotation = tower.block(tower.depth), tower.rotations()
    by_head = block.head_outputs(x, rotation=rotation)
    attended = x + block.attention_update(by_head)
    last = attended + block.mlp_update(attended)
    for head in range(tower.heads):
        alone = torch.zeros_like(by_head)
        alone[:, head] = by_head[:, head]
        merged, own = (one.transpose(1, 2).flatten(2) for one in (by_head, alone))
        if isinstance(norm := block.ln_inner, torch.nn.LayerNorm):
            own = centred(own) / deviation(merged, norm) * norm.weight
            merged = norm(merged)
        own = own @ block.out_proj.weight.T
        if isinstance(norm := block.ls_1, torch.nn.LayerNorm):
            own = centred(own) / deviation(block.out_proj(merged), norm) * norm.weight
        else:
            own = block.ls_1(own)
        torch.testing.assert_close(found[:, head], carried(tower, own, last), rtol=0, atol=1e-12)


def carried(tower: VisionTower, own: Tensor, last: Tensor) -> Tensor:
    """What is written to the last layer's tokens as it arrives in the embedding, all weights being fixed."""
    read, end = tower.readout, tower.ln_final
    if read is None:
        return centred(own[:, 0]) / deviation(last[:, 0], end) * end.weight @ tower.projection
    if isinstance(read.norm, torch.nn.LayerNorm):
        own = centred(own) / deviation(last, read.norm) * read.norm.weight
    own = own[:, read.skip :]
    if not hasattr(read, "latent"):
        pooled = own.mean(dim=1)
        if isinstance(end, torch.nn.LayerNorm):
            mean = last[:, read.skip :].mean(dim=1)
            pooled = centred(pooled) / deviation(mean, end) * end.weight
        return pooled @ tower.projection
    width, heads = tower.width, read.heads
    key = read.key_value(read.norm(last[:, read.skip :]))[..., :width].unflatten(-1, (heads, -1))
    query = read.query(read.latent)[0, 0].unflatten(0, (heads, -1))
    shares = (torch.einsum("bthd,hd->bht", key, query) * (width // heads) ** -0.5).softmax(dim=-1)
    value = (own @ read.key_value.weight[width:].T).unflatten(-1, (heads, -1))
    pooled = torch.einsum("bht,bthd->bhd", shares, value).flatten(1)
    return pooled @ read.out_proj.weight.T @ tower.projection


def centred(x: Tensor) -> Tensor:
    return x - x.mean(dim=-1, keepdim=True)


def deviation(x: Tensor, norm: torch.nn.Module) -> Tensor:
    return (x.var(dim=-1, unbiased=False, keepdim=True) + norm.eps).sqrt()
