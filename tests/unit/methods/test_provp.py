"""What is particular to ProVP; what all methods share is in tests/contract, its numbers in tests/parity."""

import math

import pytest
import torch
from torch.nn.functional import cross_entropy, normalize

from dear.backbone.clip import Clip
from tests.conftest import MakeClip
from tests.helpers.methods import build, pixels

LABELS = torch.tensor([2, 0, 1])


@pytest.mark.parametrize("tokens", [1, 3, 6])
@torch.no_grad()
def test_layer_by_layer(tokens: int, make_small_clip: MakeClip) -> None:
    """Any number of prompts is put in, 4 and fewer too, and each layer mixes its own in."""
    clip = make_small_clip(dtype=torch.float64)
    method = build("provp", clip, tokens=tokens, beta=0.8)
    x = trunk = method.image_trunk(pixels(3, torch.float64))
    own = method.image_prompts.expand(3, -1, -1, -1)
    for layer in range(clip.image.depth):
        if layer == 0:
            x = torch.cat([x[:, :1], own[:, 0], x[:, 1:]], dim=1)
        else:
            mixed = 0.8 * own[:, layer] + 0.2 * x[:, 1 : 1 + tokens]
            x = torch.cat([x[:, :1], mixed, x[:, 1 + tokens :]], dim=1)
        x = clip.image.layers(x, layer + 1, layer + 1)
    assert x.shape[1] == 26 + tokens
    want = normalize(clip.image.finish(x[:, 0]), dim=-1)
    torch.testing.assert_close(method.image_features(trunk)[0], want, rtol=0, atol=1e-12)


def test_the_loss_finds_each_image_by_its_cosine(small_clip: Clip) -> None:
    method = build("provp", small_clip, tokens=2, ref_weight=0.5)
    trunk = method.image_trunk(pixels(3))
    parts, frozen = method.loss(trunk, LABELS), method.frozen_image(trunk)
    assert torch.equal(parts["loss"], method.loss(trunk, LABELS, frozen)["loss"])
    torch.testing.assert_close(parts["loss"], parts["ce"] + 0.5 * parts["ref"])
    cosines = method.image_features(trunk)[0] @ frozen.T
    torch.testing.assert_close(parts["ref"], cross_entropy(cosines, torch.arange(3)))
    assert method.loss(trunk[:1], LABELS[:1])["ref"] == 0  # nothing to contrast with


@pytest.mark.parametrize(("given", "side"), [(14, 14), (None, 4), (1, 1)])
def test_the_bound_of_the_start(given: int | None, side: int, small_clip: Clip) -> None:
    assert small_clip.image.patch_size == 4
    start = build("provp", small_clip, start_patch=given).image_prompts.detach().abs()
    bound = math.sqrt(6 / (3 * side**2 + small_clip.image.width))
    assert start.shape == (small_clip.image.depth, 16, small_clip.image.width)
    assert 0.99 * bound < start.max() <= bound
