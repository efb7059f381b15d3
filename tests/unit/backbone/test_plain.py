"""The tiny CLIP without open_clip is open_clip's own, bit for bit."""

from typing import Any

import pytest
import torch
from torch import Tensor

from dear.backbone import tiny, weights
from dear.backbone.clip import Clip
from dear.backbone.tiny import WordTokenizer

TEXTS = ["a photo of a red circle.", "striped", "a blue square in the snow, drawn"]


@pytest.fixture(scope="module")
def state() -> dict[str, Tensor]:
    return weights.read_safetensors(tiny.FOLDER / tiny.WEIGHTS)


@pytest.fixture(scope="module")
def original(state: dict[str, Tensor]) -> Any:
    """open_clip's model with the embedded weights."""
    tokenizer = WordTokenizer.load(tiny.FOLDER / tiny.VOCABULARY)
    model = tiny.build(tokenizer)
    weights.fill_weights(model, state, tiny.FOLDER)
    return model.eval()


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
def test_its_towers_compute_what_open_clips_do(original: Any, kind: torch.dtype) -> None:
    plain = tiny.load()
    other = Clip(original, plain.tokenizer, name="tiny", pretrained="world", mean=tiny.MEAN, std=tiny.STD)
    assert plain.identity == other.identity
    images = torch.rand(3, 3, 48, 48, generator=torch.Generator().manual_seed(0))
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=kind is torch.bfloat16):
        found, wanted = ((one.encode_image(images), one.encode_text(TEXTS)) for one in (plain, other))
    assert all(map(torch.equal, found, wanted))
    assert torch.equal(plain.scale, other.scale)


def test_open_clips_own_forward_pass_agrees(original: Any) -> None:
    plain = tiny.load()
    images = torch.rand(3, 3, 48, 48, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        torch.testing.assert_close(plain.encode_image(images), original.encode_image(images))
        wanted = original.encode_text(plain.tokenize(TEXTS))
        torch.testing.assert_close(plain.encode_text(TEXTS), wanted)


def test_building_it_draws_nothing() -> None:
    before = torch.get_rng_state()
    tiny.load()
    assert torch.equal(torch.get_rng_state(), before)
