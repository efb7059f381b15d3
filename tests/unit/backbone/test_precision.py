"""What "auto" means for a processor and a tower; a CLIP in float16; convolutions in float32 that a
GPU does not round to TF32 (here on the CPU: the setting alone, by torch).
"""

import threading
from typing import Any

import pytest
import torch
from open_clip.model import CLIP
from torch.nn.functional import normalize

from dear.backbone import vision
from dear.backbone.clip import Clip
from dear.backbone.device import Float32Norm, half, precision_for
from dear.backbone.loading.convert import to_clip
from dear.backbone.loading.tiny import WordTokenizer
from dear.backbone.vision import exact_convolutions
from dear.errors import SettingsError
from tests.conftest import MEAN, STD, WORDS, MakeClip
from tests.helpers.clips import eval_views, usual_view
from tests.helpers.errors import refuses

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
    return to_clip(
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
    refuses(SettingsError, "16-mixed needs a GPU", precision_for, wide, "16-mixed")


def pixels(count: int = 3) -> torch.Tensor:
    pictures = torch.randint(0, 256, (count, 3, 20, 20), generator=torch.Generator().manual_seed(1))
    return eval_views(pictures.to(torch.uint8), 20)


def test_what_stays_in_float32(small_clip: Clip) -> None:
    before = {name: one.clone() for name, one in small_clip.state_dict().items()}
    found = half(small_clip)
    full = {name for name, one in found.named_parameters() if one.dtype == torch.float32}
    assert full == {"logit_scale"} | {
        f"{name}.{part}"
        for name, module in found.named_modules()
        if isinstance(module, Float32Norm)
        for part in ("weight", "bias")
    }
    assert len(full) == 1 + 2 * (2 * 5 + 2 * 4 + 3)  # two of each layer; before and after the layers
    assert found.mean.dtype == found.std.dtype == torch.float32
    assert (found.identity, found.tokenizer) == (small_clip.identity, small_clip.tokenizer)
    assert not any(one.requires_grad for one in found.parameters())
    for name, one in small_clip.state_dict().items():  # the original is as it was
        assert torch.equal(one, before[name])


@torch.no_grad()
def test_features_are_near_those_of_float32(make_small_clip: MakeClip) -> None:
    exact, texts = make_small_clip(), ["a red house on the sea", "tree"]
    rough = half(exact)
    pairs = [(one.image(one.normalize_pixels(pixels())), one.encode_text(texts)) for one in (exact, rough)]
    for one, other in zip(*pairs, strict=True):
        assert other.dtype == torch.float16
        assert not torch.equal(other.float(), one)
        torch.testing.assert_close(
            normalize(other.float(), dim=-1), normalize(one, dim=-1), atol=4e-3, rtol=0
        )


CUDA = torch.device("cuda")


def setting() -> str:
    return str(torch.backends.cudnn.conv.fp32_precision)


def test_the_setting_holds_for_the_context_alone() -> None:
    before = setting()
    with exact_convolutions(CUDA):
        assert setting() == "ieee"
        with exact_convolutions(CUDA):
            assert setting() == "ieee"
        assert setting() == "ieee"
    assert setting() == before != "ieee"
    with pytest.raises(ValueError, match="inside"), exact_convolutions(CUDA):
        raise ValueError("inside")
    assert setting() == before
    assert torch.backends.cudnn.allow_tf32  # the older name of the setting still tells


def test_threads_do_not_restore_it_for_each_other() -> None:
    before, seen = setting(), list[str]()

    def convolve() -> None:
        for _ in range(200):
            with exact_convolutions(CUDA):
                seen.append(setting())

    threads = [threading.Thread(target=convolve) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == ["ieee"] * 800
    assert setting() == before


def test_patches_are_embedded_in_it(small_clip: Clip, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vision, "exact_convolutions", lambda _: exact_convolutions(CUDA))
    seen = list[str]()
    handle = small_clip.image.conv1.register_forward_pre_hook(lambda *_: seen.append(setting()))
    small_clip.image.embed(torch.rand(2, 3, 20, 20))
    handle.remove()
    assert seen == ["ieee"]
