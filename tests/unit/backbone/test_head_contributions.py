"""Contributions add up to the embedding, and each is what its own head does."""

from collections.abc import Callable

import torch
from open_clip.model import CLIP
from torch import Tensor

from dear.backbone.convert import to_towers
from dear.backbone.head_contributions import head_contributions


def images(dtype: torch.dtype, size: int = 20, batch: int = 2) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(batch, 3, size, size, generator=generator, dtype=torch.float64).to(dtype)


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
