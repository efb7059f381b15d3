"""Attention of the class token, against what the blocks compute in a forward pass."""

import torch

from dear.adapters.attention import recorded
from dear.backbone.block import Block
from dear.backbone.clip import Clip
from dear.backbone.vision import class_attention


def test_the_weights_are_those_of_the_forward_pass(small_clip: Clip) -> None:
    pixels = torch.randn(3, 3, 20, 20, generator=torch.Generator().manual_seed(1))
    found = class_attention(small_clip.image, pixels, [5, 2])
    assert found.shape == (3, 2, 3, 5, 5)
    for at, layer in enumerate([5, 2]):
        block = small_clip.image.blocks[layer - 1]
        assert isinstance(block, Block)
        with recorded(block) as weights:
            small_clip.encode_image(pixels)
        torch.testing.assert_close(found[:, at].flatten(2), weights[0][:, :, 0, 1:], rtol=1e-4, atol=1e-6)
