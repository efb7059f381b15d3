"""What "auto" means for a processor and a tower, and that bfloat16 keeps to its fast path."""

from typing import Any

import pytest
import torch
from open_clip.model import CLIP
from torch.nn.functional import cosine_similarity
from torch.utils._python_dispatch import TorchDispatchMode

from dear.backbone.clip import Clip
from dear.backbone.precision import mixed, precision_for
from dear.backbone.tiny import WordTokenizer
from dear.errors import SettingsError
from tests.conftest import MEAN, STD, WORDS
from tests.views import usual_view

WIDTH, TOKENS, LAYERS = 384, 17, 2
AMX = {"cpu_name": "Intel Xeon", "avx512_bf16": True, "amx_bf16": True}
INTEL = {"cpu_name": "Intel Xeon", "avx512_bf16": True, "amx_bf16": False}
AMD = {"cpu_name": "AMD EPYC", "avx512_bf16": True, "amx_bf16": False}
OLD = {"cpu_name": "AMD EPYC", "avx512_bf16": False, "amx_bf16": False}


@pytest.fixture(scope="module")
def wide() -> Clip:
    """A CLIP whose image tower is as wide as that of a small ViT."""
    vision = {"image_size": 32, "patch_size": 8, "width": WIDTH, "head_width": 64, "layers": LAYERS}
    tokenizer = WordTokenizer(WORDS, 13)
    text = {
        "context_length": 13,
        "vocab_size": tokenizer.vocab_size,
        "width": 64,
        "heads": 1,
        "layers": 1,
    }
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        model = CLIP(64, vision, text)  # type: ignore[arg-type]
    return Clip(
        model.eval(), tokenizer, name="wide", pretrained="random", preprocess=usual_view(model, MEAN, STD)
    )


@pytest.mark.parametrize(
    ("known", "expected"),
    [(AMX, "bf16-mixed"), (AMD, "bf16-mixed"), (INTEL, "32-true"), (OLD, "32-true"), ({}, "32-true")],
)
def test_auto_asks_the_processor_and_the_tower(
    known: dict[str, Any], expected: str, wide: Clip, small_clip: Clip, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: known)
    assert precision_for(wide) == expected
    assert precision_for(small_clip) == "32-true"
    assert precision_for(wide, "32-true") == "32-true"
    assert precision_for(small_clip, "bf16-mixed") == "bf16-mixed"
    with pytest.raises(SettingsError, match="16-mixed needs a GPU"):
        precision_for(wide, "16-mixed")


class Copied(TorchDispatchMode):
    """Counts the numbers that copies and casts write."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        if func.overloadpacket.__name__ in ("clone", "_to_copy", "copy_"):
            self.numbers += found.numel()
        return found


@torch.no_grad()
def test_a_weight_is_cast_once_a_layer_and_never_copied_for_each_token(wide: Clip) -> None:
    """torch multiplies a transposed tensor by a frozen weight as a batched product, with a copy of the weight
    for every token: such a step spends two thirds of its time on copies.
    """
    pixels = torch.rand(3, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    with Copied() as copied, mixed(pixels.device, "bf16-mixed"):
        wide.image(pixels)
    weights = LAYERS * 12 * WIDTH**2  # in, out, and up and down of the MLP
    activations = 3 * TOKENS * WIDTH
    biases, ends = 1e4 * LAYERS, 2e6  # the patch embedding and the projection
    assert weights < copied.numbers < weights + biases + ends + LAYERS * 40 * activations
    assert weights * TOKENS > 3 * copied.numbers  # the bound tells the two apart


@torch.no_grad()
def test_features_in_bfloat16(wide: Clip) -> None:
    """They are those of float32 within the rounding of bfloat16."""
    pixels = torch.rand(3, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    with mixed(pixels.device, "bf16-mixed"):
        rough = wide.image(pixels).float()
    exact = wide.image(pixels)
    assert not torch.equal(rough, exact)
    assert float(cosine_similarity(rough, exact).min()) > 1 - 1e-3
