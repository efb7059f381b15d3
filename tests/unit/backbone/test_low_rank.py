"""Low-rank updates of a span, against weights that are changed by hand, and what their dropout drops."""

from typing import Any

import pytest
import torch
from torch import Tensor

from dear.backbone.change import UNCHANGED, LowRank, UpdateDropout
from dear.backbone.clip import Clip
from dear.backbone.towers import Tower
from tests.conftest import MakeClip

NAMES = ["a photo of a house", "a photo of a red circle on the sea", "a photo of a green tree"]


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def updates(tower: Tower, dropout: UpdateDropout | None = None, rank: int = 2) -> LowRank:
    """Of all layers of a tower, strong enough to be seen."""
    shape, draw = (tower.depth, 3), seeded(5)
    down = torch.randn(*shape, rank, tower.width, generator=draw, dtype=torch.float64)
    up = torch.randn(*shape, tower.width, rank, generator=draw, dtype=torch.float64)
    return LowRank(0.2 * down, 0.3 * up, 0.7, dropout)


def seeds(tower: Tower) -> tuple[tuple[int, int, int], ...]:
    return tuple((3 * layer, 3 * layer + 1, 3 * layer + 2) for layer in range(tower.depth))


def changed(tower: Tower) -> None:
    """Add scale B A to the weights of each layer, row by row: queries, keys and values in turn."""
    low = updates(tower)
    for layer in range(tower.depth):
        weight = tower.block(layer + 1).in_proj_weight
        for part in range(3):
            for row in range(tower.width):
                for rank in range(2):
                    added = low.up[layer, part, row, rank] * low.down[layer, part, rank]
                    weight.data[part * tower.width + row] += 0.7 * added


@pytest.fixture
def clip(make_small_clip: MakeClip) -> Clip:
    return make_small_clip(dtype=torch.float64)


def pixels() -> Tensor:
    return torch.rand(4, 3, 20, 20, generator=seeded(3), dtype=torch.float64)


@torch.no_grad()
def features(clip: Clip, of: str, low: LowRank | None, **options: Any) -> Tensor:
    """Embeddings of the images or the prompts from the input of layer 1."""
    if of == "image":
        trunk = clip.image.trunk(pixels(), 1)
        read = torch.zeros(1, dtype=torch.long)
        return clip.image.finish(clip.image.span(trunk, 1, low or UNCHANGED, read=read, **options)[:, 0])
    return clip.text.features(clip.text.trunk(clip.tokenize(NAMES), 1), 1, low or UNCHANGED, **options)


def tower_of(clip: Clip, of: str) -> Tower:
    tower: Tower = getattr(clip, of)
    return tower


@pytest.mark.parametrize("of", ["image", "text"])
@pytest.mark.parametrize("dropout", [False, True])
def test_same_as_weights_changed_by_hand(of: str, dropout: bool, clip: Clip) -> None:
    """Merged into the weights, and beside them as in training steps, where here nothing is dropped."""
    tower, frozen = tower_of(clip, of), features(clip, of, None)
    low = updates(tower, UpdateDropout(0.0, seeds(tower)) if dropout else None)
    got = features(clip, of, low)
    assert torch.equal(features(clip, of, None), frozen)
    changed(tower)
    want = features(clip, of, None)
    assert (want - frozen).abs().max() > 0.1
    torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-9)


def test_what_is_dropped() -> None:
    """A share of the values; the others are divided by the share that stays."""
    dropout = UpdateDropout(0.25, ((1, 2, 3), (4, 5, 6)))
    tokens = torch.randn(40, 30, 20, generator=seeded(7))
    dropped = dropout.drop(tokens, 1, 2)
    gone = dropped == 0
    assert 0.24 < float(gone.float().mean()) < 0.26  # of 24,000: a deviation of 0.0028
    torch.testing.assert_close(dropped[~gone], tokens[~gone] / 0.75)
    assert torch.equal(dropout.drop(tokens, 1, 2), dropped)
    others = [dropout.drop(tokens, layer, part) == 0 for layer in range(2) for part in range(3)]
    assert sum(torch.equal(gone, other) for other in others) == 1
    rows = torch.tensor([31, 4, 5])
    few = UpdateDropout(0.25, dropout.seeds, 40, rows)
    assert torch.equal(few.drop(tokens[rows], 1, 2), dropped[rows])


@pytest.mark.parametrize("chunk", [1, 2])
def test_prompts_in_chunks_drop_the_same(chunk: int, clip: Clip) -> None:
    low = updates(clip.text, UpdateDropout(0.25, seeds(clip.text)))
    want = features(clip, "text", low)
    torch.testing.assert_close(features(clip, "text", low, chunk=chunk), want, rtol=1e-9, atol=1e-9)
    assert not torch.allclose(want, features(clip, "text", updates(clip.text)), atol=1e-3)
