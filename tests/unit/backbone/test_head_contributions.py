"""Contributions in towers of every kind: they add up, each is what its own head does to the embedding, and
the public convention is that of the public code.
"""

import pytest
import torch
from torch import Tensor

from dear.backbone.head_contributions import Convention, grouped_contributions, head_contributions
from dear.backbone.loading.convert import to_towers
from dear.backbone.vision import VisionTower
from tests.conftest import MakeModel
from tests.unit.backbone.shrunk import KINDS, made


@pytest.mark.parametrize("name", KINDS.values(), ids=KINDS)
def test_the_terms_add_up_to_the_embedding_and_groups_are_sums_of_contributions(name: str) -> None:
    """From the input of any layer, in one pass, with the embedding itself."""
    tower, images = made(name)
    embedding = tower(images)
    unit = torch.nn.functional.normalize(embedding, dim=-1)
    wanted: dict[Convention, Tensor] = {"exact": embedding, "public": unit}
    for layers in (range(1, tower.depth + 1), [tower.depth]):
        for convention, sum_of_terms in wanted.items():
            terms = head_contributions(tower, images, layers, convention)
            assert terms.heads.shape == (2, len(layers), tower.heads, tower.embed_dim)
            torch.testing.assert_close(terms.total(), sum_of_terms, rtol=0, atol=1e-10)
        shares = torch.rand(len(layers), tower.heads, 5, generator=torch.Generator().manual_seed(1)).double()
        start = tower.trunk(images, layers[0])
        whole, groups = grouped_contributions(tower, start, layers[0], shares)
        torch.testing.assert_close(whole, embedding, rtol=0, atol=1e-10)
        heads = head_contributions(tower, images, layers).heads
        for group in range(5):
            expected = torch.zeros_like(embedding)
            for layer in range(len(layers)):
                for head in range(tower.heads):
                    expected += shares[layer, head, group] * heads[:, layer, head]
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
            own = centered(own) / deviation(merged, norm) * norm.weight
            merged = norm(merged)
        own = own @ block.out_proj.weight.T
        if isinstance(norm := block.ls_1, torch.nn.LayerNorm):
            own = centered(own) / deviation(block.out_proj(merged), norm) * norm.weight
        else:
            own = block.ls_1(own)
        torch.testing.assert_close(found[:, head], carried(tower, own, last), rtol=0, atol=1e-12)


def carried(tower: VisionTower, own: Tensor, last: Tensor) -> Tensor:
    """What is written to the last layer's tokens as it arrives in the embedding, all weights being fixed."""
    read, end = tower.pool, tower.ln_final
    if read is None:
        return centered(own[:, 0]) / deviation(last[:, 0], end) * end.weight @ tower.projection
    if isinstance(read.norm, torch.nn.LayerNorm):
        own = centered(own) / deviation(last, read.norm) * read.norm.weight
    own = own[:, read.skip :]
    if not hasattr(read, "latent"):
        pooled = own.mean(dim=1)
        if isinstance(end, torch.nn.LayerNorm):
            mean = last[:, read.skip :].mean(dim=1)
            pooled = centered(pooled) / deviation(mean, end) * end.weight
        return pooled @ tower.projection
    width, heads = tower.width, read.heads
    key = read.key_value(read.norm(last[:, read.skip :]))[..., :width].unflatten(-1, (heads, -1))
    query = read.query(read.latent)[0, 0].unflatten(0, (heads, -1))
    shares = (torch.einsum("bthd,hd->bht", key, query) * (width // heads) ** -0.5).softmax(dim=-1)
    value = (own @ read.key_value.weight[width:].T).unflatten(-1, (heads, -1))
    pooled = torch.einsum("bht,bthd->bhd", shares, value).flatten(1)
    return pooled @ read.out_proj.weight.T @ tower.projection


def centered(x: Tensor) -> Tensor:
    return x - x.mean(dim=-1, keepdim=True)


def deviation(x: Tensor, norm: torch.nn.Module) -> Tensor:
    return (x.var(dim=-1, unbiased=False, keepdim=True) + norm.eps).sqrt()


def test_the_public_convention_is_that_of_the_public_code(make_small_model: MakeModel) -> None:
    """From open_clip's modules: each head takes 1 / 3 of its layer's output bias, each of the 11 terms (5
    layers' heads, 5 MLPs, the input) an equal part of the final mean and bias, all over the length.
    """
    model = make_small_model(dtype=torch.float64)
    tower, _ = to_towers(model)
    generator, visual = torch.Generator().manual_seed(1), model.visual
    x = torch.randn(2, 3, 20, 20, generator=generator, dtype=torch.float64)
    with torch.no_grad():
        outputs = [tower.trunk(x, layer) for layer in range(1, 6)]
        final = visual.transformer.resblocks[4](outputs[4])[:, 0]
        deviation = (final.var(dim=-1, unbiased=False, keepdim=True) + 1e-5).sqrt()

        def term(added: Tensor, part: float) -> Tensor:
            centered = (added - part * final.mean(dim=-1, keepdim=True)) / deviation * visual.ln_post.weight
            embedded = (centered + part * visual.ln_post.bias) @ visual.proj
            return embedded / tower(x).norm(dim=-1, keepdim=True)

        terms = head_contributions(tower, x, range(1, 6), "public")
        assert terms.layers == (1, 2, 3, 4, 5)
        for at, block in enumerate(visual.transformer.resblocks):
            inside = outputs[at]
            by_head = tower.blocks[at].head_outputs(inside)[:, :, 0]
            for head in range(3):
                weight = block.attn.out_proj.weight[:, 7 * head : 7 * head + 7]
                added = by_head[:, head] @ weight.T + block.attn.out_proj.bias / 3
                torch.testing.assert_close(terms.heads[:, at, head], term(added, 1 / 33), rtol=0, atol=1e-12)
            attended = inside + block.attention(block.ln_1(inside))
            added = block.mlp(block.ln_2(attended))[:, 0]
            torch.testing.assert_close(terms.mlps[:, at], term(added, 1 / 11), rtol=0, atol=1e-12)
        torch.testing.assert_close(terms.remainder, term(outputs[0][:, 0], 1 / 11), rtol=0, atol=1e-12)
        unit = torch.nn.functional.normalize(tower(x), dim=-1)
        torch.testing.assert_close(terms.total(), unit, rtol=0, atol=1e-12)
        some = head_contributions(tower, x, [4], "public")
        torch.testing.assert_close(some.heads[:, 0], terms.heads[:, 3], rtol=0, atol=1e-14)
        torch.testing.assert_close(some.total(), unit, rtol=0, atol=1e-12)
