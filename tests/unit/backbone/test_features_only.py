"""Towers that give features only, of ResNets, ConvNeXt, FastViT, CoCa and others: those of open_clip."""

import copy
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from dear.backbone.change import Injection
from dear.backbone.device import half
from dear.backbone.features_only import FeaturesOnlyTextTower, FeaturesOnlyVisionTower
from dear.backbone.loading.convert import to_towers
from dear.backbone.loading.open_clip_format import build_from
from dear.backbone.loading.weights import load_weights
from dear.errors import WeightsError
from tests.helpers.clips import COCA, RESNET, clip_of, network_of


def images(size: int, count: int = 3) -> torch.Tensor:
    return torch.rand(count, 3, size, size, generator=torch.Generator().manual_seed(5))


@torch.no_grad()
@pytest.mark.parametrize(("config", "size", "text"), [(RESNET, 64, "layers"), (COCA, 20, "features")])
def test_features_are_open_clips(config: dict[str, Any], size: int, text: str) -> None:
    clip = clip_of(network_of(config))
    theirs = network_of(config).eval()
    assert (clip.image.access, clip.text.access, clip.image_size) == ("features", text, size)
    pixels = clip.normalize_pixels(images(size))
    expected = theirs.encode_image(pixels, normalize=False)
    torch.testing.assert_close(clip.encode_image(pixels), expected, rtol=1e-5, atol=1e-6)
    ids = clip.tokenize(["a red house on the sea", "tree"])
    expected = theirs.encode_text(ids, normalize=False)
    torch.testing.assert_close(clip.text(ids), expected, rtol=1e-5, atol=1e-6)
    assert (clip.image.embed_dim, clip.text.embed_dim) == (expected.shape[1],) * 2


@torch.no_grad()
def test_the_trunk_past_the_tower_is_the_embedding() -> None:
    image, text = to_towers(network_of(COCA).eval())
    assert isinstance(image, FeaturesOnlyVisionTower)
    assert isinstance(text, FeaturesOnlyTextTower)
    pixels = images(20)
    assert image.trunk(pixels, 2).shape == (3, 1, 19)
    assert torch.equal(image.finish(image.trunk(pixels, 2)[:, 0]), image(pixels))
    assert torch.equal(image.finish(image.span(pixels, 1)[:, 0]), image(pixels))
    ids = torch.tensor([[5, 6, 7, 0], [8, 9, 0, 0]])
    trunk = text.trunk(ids, 2)
    assert torch.equal(text.features(trunk, 2), text(ids))


def test_what_they_do_not_have_is_refused() -> None:
    image, text = to_towers(network_of(COCA))
    for attempt, kind in (
        (lambda: image.heads, "image"), (lambda: image.block(1), "image"),
        (lambda: image.span(images(20), 1, Injection(torch.zeros(2, 19), 1.0)), "image"),
        (lambda: image.trainable_copy(1), "image"), (lambda: text.block(1), "text"),
        (lambda: text.trunk(torch.zeros(1, 3).long(), 1), "text"),
    ):  # fmt: skip
        with pytest.raises(WeightsError, match=rf"{kind} tower \(CoCa's .*gives features only"):
            attempt()


@torch.no_grad()
def test_in_half_precision_an_opaque_block_stays_exact() -> None:
    clip = clip_of(network_of(RESNET))
    rounded = half(clip)
    assert {p.dtype for p in rounded.image.blocks.parameters()} == {torch.float32}
    assert rounded.image.projection.dtype == rounded.text.projection.dtype == torch.float16
    features = rounded.encode_image(rounded.normalize_pixels(images(64)))
    assert features.dtype == torch.float16
    expected = clip.encode_image(clip.normalize_pixels(images(64)))
    torch.testing.assert_close(features.float(), expected, rtol=0.02, atol=0.02)
    with torch.autocast("cpu", torch.bfloat16):
        mixed = clip.encode_image(clip.normalize_pixels(images(64)))
    assert torch.equal(mixed, expected)


@pytest.mark.parametrize("config", [RESNET, COCA])
@torch.no_grad()
def test_weights_from_a_file_are_whole(config: dict[str, Any], tmp_path: Any) -> None:
    """Masks and statistics are there too: nothing is left on the meta device."""
    network = network_of(config)
    save_file(
        {name: tensor.clone() for name, tensor in network.state_dict().items()}, tmp_path / "w.safetensors"
    )
    with torch.device("meta"):
        empty = build_from("small", copy.deepcopy(config))
    load_weights(empty, tmp_path / "w.safetensors")
    loaded, before = clip_of(empty), clip_of(network)
    assert loaded.identity.sha256 == before.identity.sha256
    size = loaded.image_size
    assert torch.equal(loaded.encode_image(images(size)), before.encode_image(images(size)))
    assert torch.equal(loaded.encode_text(["a tree"]), before.encode_text(["a tree"]))
