"""Contributions add up to the embedding, and each is what its own head does."""

from collections.abc import Callable

import pytest
import torch
from open_clip.model import CLIP
from torch import Tensor

from dear.backbone import tiny
from dear.backbone.clip import Clip
from dear.backbone.convert import to_towers
from dear.backbone.head_contributions import head_contributions
from dear.backbone.load import build_random

MakeClip = Callable[..., Clip]


def images(dtype: torch.dtype, size: int = 20, batch: int = 2) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(batch, 3, size, size, generator=generator, dtype=torch.float64).to(dtype)


@pytest.mark.parametrize(("dtype", "gap"), [(torch.float32, 1e-4), (torch.float64, 1e-9)])
@pytest.mark.parametrize("options", [{}, {"quick_gelu": True}, {"layer_scale": 0.3}], ids=str)
def test_the_terms_add_up_to_the_embedding(
    make_small_clip: MakeClip, dtype: torch.dtype, gap: float, options: dict[str, object]
) -> None:
    tower = make_small_clip(dtype=dtype, **options).image
    terms = head_contributions(tower, images(dtype), range(1, 6))
    assert terms.heads.shape == (2, 5, 3, 17)
    assert terms.mlps.shape == (2, 5, 17)
    torch.testing.assert_close(terms.total(), tower(images(dtype)), rtol=0, atol=gap)


def test_some_layers_keep_their_terms_and_the_sum(make_small_clip: MakeClip) -> None:
    tower = make_small_clip(dtype=torch.float64).image
    x = images(torch.float64)
    every, some = head_contributions(tower, x, range(1, 6)), head_contributions(tower, x, [5, 2])
    assert some.layers == (5, 2)
    torch.testing.assert_close(some.heads, every.heads[:, [4, 1]], rtol=0, atol=1e-14)
    torch.testing.assert_close(some.mlps, every.mlps[:, [4, 1]], rtol=0, atol=1e-14)
    torch.testing.assert_close(some.total(), tower(x), rtol=0, atol=1e-9)


def test_a_head_without_values_contributes_nothing(
    make_small_clip: MakeClip,
) -> None:
    """With the value rows of head 1 of layer 4 at zero, that contribution vanishes and the others stay."""
    clip = make_small_clip(dtype=torch.float64)
    x = images(torch.float64)
    before = head_contributions(clip.image, x, [4])
    block = clip.image.blocks[3]
    with torch.no_grad():
        block.in_proj_weight[42 + 7 : 42 + 14] = 0  # queries, keys, values are 21 rows each; a head has 7
        block.in_proj_bias[42 + 7 : 42 + 14] = 0
    after = head_contributions(clip.image, x, [4])
    assert torch.equal(after.heads[:, 0, 1], torch.zeros(2, 17, dtype=torch.float64))
    assert before.heads[:, 0, 1].abs().max() > 1e-3
    # The final deviation changes, and scales every term of an image alike.
    ratio = after.heads[:, 0, 0] / before.heads[:, 0, 0]
    torch.testing.assert_close(ratio, ratio[:, :1].expand(-1, 17), rtol=1e-9, atol=0)


def test_a_contribution_is_the_sum_over_source_tokens_of_the_definition(
    make_small_model: Callable[..., CLIP],
) -> None:
    """Last layer, from open_clip's own modules: weights x values x output slice, through ln_post."""
    model = make_small_model(dtype=torch.float64)
    tower, _ = to_towers(model)
    x = tower.trunk(images(torch.float64), 5)
    source = model.visual.transformer.resblocks[4]
    normed = source.ln_1(x)
    query, key, value = source.attn.in_proj_weight.split(21)
    bias_q, bias_k, bias_v = source.attn.in_proj_bias.split(21)
    final = source(x)[:, 0]
    expected = torch.zeros(2, 3, 17, dtype=torch.float64)
    for head in range(3):
        rows = slice(7 * head, 7 * head + 7)
        scores = (normed[:, 0] @ query[rows].T + bias_q[rows]).unsqueeze(1) * (
            normed @ key[rows].T + bias_k[rows]
        )
        shares = (scores.sum(dim=-1) / 7**0.5).softmax(dim=-1)
        for token in range(26):
            sent = shares[:, token, None] * (normed[:, token] @ value[rows].T + bias_v[rows])
            added = sent @ source.attn.out_proj.weight[:, rows].T
            deviation = (final.var(dim=-1, unbiased=False, keepdim=True) + 1e-5).sqrt()
            scaled = (added - added.mean(dim=-1, keepdim=True)) / deviation * model.visual.ln_post.weight
            expected[:, head] += scaled @ model.visual.proj
    terms = head_contributions(tower, images(torch.float64), [5])
    torch.testing.assert_close(terms.heads[:, 0], expected, rtol=0, atol=1e-12)


def test_the_public_convention_is_that_of_the_public_code(make_small_model: Callable[..., CLIP]) -> None:
    """From open_clip's modules: each head takes 1 / 3 of its layer's output bias, each of the 11 terms (5
    layers' heads, 5 MLPs, the input) an equal part of the final mean and bias, all over the length.
    """
    model = make_small_model(dtype=torch.float64)
    tower, _ = to_towers(model)
    x, visual = images(torch.float64), model.visual
    with torch.no_grad():
        outputs = [tower.trunk(x, layer) for layer in range(1, 6)]
        final = visual.transformer.resblocks[4](outputs[4])[:, 0]
        deviation = (final.var(dim=-1, unbiased=False, keepdim=True) + 1e-5).sqrt()

        def term(added: Tensor, part: float) -> Tensor:
            centred = (added - part * final.mean(dim=-1, keepdim=True)) / deviation * visual.ln_post.weight
            embedded = (centred + part * visual.ln_post.bias) @ visual.proj
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


@pytest.mark.parametrize("layers", [[], [0], [6], [2, 2]])
def test_layers_that_are_not_there(small_clip: Clip, layers: list[int]) -> None:
    with pytest.raises(ValueError, match="between 1 and 5"):
        head_contributions(small_clip.image, images(torch.float32), layers)


GAPS = [(torch.float32, 1e-4), (torch.float64, 1e-9)]


@pytest.mark.long
@pytest.mark.parametrize(("dtype", "gap"), GAPS)
@pytest.mark.parametrize("name", ["ViT-B-16", "ViT-L-14"])
def test_the_terms_add_up_on_real_architectures(name: str, dtype: torch.dtype, gap: float) -> None:
    tower, _ = to_towers(build_random(name, 0).eval())
    tower = tower.to(dtype)
    with torch.no_grad():
        x = images(dtype, size=224, batch=1)
        terms = head_contributions(tower, x, range(1, tower.depth + 1))
        torch.testing.assert_close(terms.total(), tower(x), rtol=0, atol=gap)
        assert terms.heads.shape == (1, tower.depth, tower.heads, tower.embed_dim)


@pytest.mark.parametrize(("dtype", "gap"), GAPS)
def test_the_terms_add_up_on_the_tiny_clip(dtype: torch.dtype, gap: float) -> None:
    if not (tiny.FOLDER / tiny.WEIGHTS).is_file():
        pytest.skip(f"the packaged weights are not there yet: {tiny.FOLDER / tiny.WEIGHTS}")
    clip = tiny.load().to(dtype)
    with torch.no_grad():
        x = images(dtype, size=clip.image_size, batch=3)
        total = head_contributions(clip.image, x, range(1, 13)).total()
        torch.testing.assert_close(total, clip.encode_image(x), rtol=0, atol=gap)
