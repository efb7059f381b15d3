"""Attention maps against a slow reference: the whole span, layer by layer, with its masks written out."""

import pytest
import torch

from dear.adapters.attention import attention_maps, overlay
from dear.backbone.clip import Clip
from dear.errors import SettingsError
from tests.helpers.bundles import small_predictor
from tests.helpers.errors import refuses
from tests.helpers.server import picture


@torch.no_grad()
@pytest.mark.parametrize("layer", [1, 3, 4, 5])
def test_maps_are_the_methods_own_weights(small_clip: Clip, layer: int) -> None:
    predictor = small_predictor(small_clip)
    method, pixels = predictor.method, predictor.preprocess(picture())
    tower, beta, raw = small_clip.image, method.settings.beta, method.attribute_tokens  # type: ignore[attr-defined]
    x = tower.embed(small_clip.normalize_pixels(pixels[None]))
    for number in range(1, layer + 1):
        if number == 4:
            x = torch.cat([x, raw[None]], dim=1)
        elif number > 4:
            x = torch.cat([x[:, :26], beta * raw[None] + (1 - beta) * x[:, 26:]], dim=1)
        bias = method.mask[number - 4] if number >= 4 else None  # type: ignore[index]
        block = tower.blocks[number - 1]
        query, key, _ = block.query_key_value(x)  # type: ignore[operator]
        scores = torch.einsum("bhqd,bhkd->bhqk", query, key) / 7**0.5
        weights = (scores if bias is None else scores + bias).softmax(dim=-1)
        x = block(x, bias)
    for head in range(3):
        maps = attention_maps(method, pixels, layer, head)
        assert list(maps) == (["class", "color", "object"] if layer >= 4 else ["class"])
        for name, row in zip(maps, (0, 26, 27), strict=False):
            wanted = weights[0, head, row, 1:26].unflatten(0, (5, 5))
            torch.testing.assert_close(maps[name], wanted, rtol=1e-5, atol=1e-6)


def test_what_is_not_there(small_clip: Clip) -> None:
    predictor = small_predictor(small_clip)
    pixels = predictor.preprocess(picture())
    refuses(SettingsError, ("6", "1 to 5"), attention_maps, predictor.method, pixels, 6, 0)
    refuses(SettingsError, ("3", "0 to 2"), attention_maps, predictor.method, pixels, 1, 3)


def test_the_overlay_is_lightest_where_the_head_looks() -> None:
    grid = torch.zeros(5, 5)
    grid[1, 3] = 0.5
    image = overlay(torch.full((3, 20, 20), 0.5), grid, side=100)
    assert image.size == (100, 100)
    assert sum(image.getpixel((70, 30))) > sum(image.getpixel((30, 70)))  # type: ignore[arg-type]
