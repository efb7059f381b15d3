"""A GPU's convolutions of float32 are not rounded to TF32. Here on the CPU: the setting alone, by torch."""

import threading

import pytest
import torch

from dear.backbone import vision
from dear.backbone.clip import Clip
from dear.backbone.vision import exact_convolutions

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
