"""What "auto" means for a processor and a tower."""

from typing import Any

import pytest
import torch
from open_clip.model import CLIP

from dear.backbone.clip import Clip
from dear.backbone.precision import precision_for
from dear.backbone.tiny import WordTokenizer
from dear.errors import SettingsError
from tests.conftest import MEAN, STD, WORDS
from tests.views import usual_view

AMX = {"cpu_name": "Intel Xeon", "avx512_bf16": True, "amx_bf16": True}
INTEL = {"cpu_name": "Intel Xeon", "avx512_bf16": True, "amx_bf16": False}
AMD = {"cpu_name": "AMD EPYC", "avx512_bf16": True, "amx_bf16": False}
OLD = {"cpu_name": "AMD EPYC", "avx512_bf16": False, "amx_bf16": False}


@pytest.fixture(scope="module")
def wide() -> Clip:
    """A CLIP whose image tower is as wide as that of a small ViT."""
    vision = {"image_size": 32, "patch_size": 8, "width": 384, "head_width": 64, "layers": 1}
    tokenizer = WordTokenizer(WORDS, 13)
    sizes = {"context_length": 13, "vocab_size": tokenizer.vocab_size}
    model = CLIP(64, vision, sizes | {"width": 64, "heads": 1, "layers": 1})  # type: ignore[arg-type]
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
