"""The number formats that a CLIP is computed in: what "auto" means on a device, autocast, float16 weights."""

import copy
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import layer_norm

from dear.backbone.clip import Clip
from dear.backbone.names import Precision
from dear.backbone.towers import Opaque
from dear.errors import SettingsError

WIDE = 384
"""Width of an image tower from which bfloat16 is chosen on a CPU. Below it, casts cost what products gain,
and the embedded CLIP gives the same numbers on every processor."""


def precision_for(clip: Clip, precision: Precision = "auto", device: torch.device | None = None) -> Precision:
    """The precision that a CLIP is computed in. "auto" is bf16-mixed on a GPU, and on a CPU that is fast in
    bfloat16 if the image tower is wide enough; otherwise 32-true. Any other is returned unchanged. The
    device is by default the CLIP's.

    Raises SettingsError for 16-mixed on a CPU. "auto" is never 16-true, which has to be asked for.
    """
    like = clip.image.projection
    device = device or like.device
    resolved = device_precision(precision, device)
    wide = precision == "auto" and device.type == "cpu" and clip.image.width >= WIDE
    return "bf16-mixed" if wide and like.dtype == torch.float32 and fast_in_bfloat16() else resolved


def device_precision(precision: Precision, device: torch.device) -> Precision:
    """Resolve the precision for a device alone: "auto" is float32 on a CPU and bf16-mixed on a GPU. Raises
    SettingsError for 16-mixed on a CPU.
    """
    if precision == "16-mixed" and device.type == "cpu":
        raise SettingsError("precision 16-mixed needs a GPU: on a CPU use bf16-mixed or 32-true.")
    if precision != "auto":
        return precision
    return "bf16-mixed" if device.type == "cuda" else "32-true"


def fast_in_bfloat16() -> bool:
    """True if this processor multiplies matrices faster in bfloat16 than in float32: with matrix units (AMX),
    or with AVX512-BF16 on AMD. Intel's AVX512-BF16 alone takes longer than float32 (docs/performance.md).
    """
    cpu = torch.cpu.get_capabilities() if hasattr(torch.cpu, "get_capabilities") else {}
    amd = str(cpu.get("cpu_name", "")).startswith("AMD")
    return bool(cpu.get("amx_bf16") or (amd and cpu.get("avx512_bf16")))


def mixed(device: torch.device, precision: Precision) -> AbstractContextManager[Any]:
    """The autocast context of a precision."""
    dtypes: dict[Precision, torch.dtype] = {"bf16-mixed": torch.bfloat16, "16-mixed": torch.float16}
    dtype = dtypes.get(device_precision(precision, device))
    return nullcontext() if dtype is None else torch.autocast(device.type, dtype)


def gradient_scaler(device: torch.device, precision: Precision) -> torch.amp.GradScaler:
    """What keeps small gradients of 16-mixed from rounding to zero: it scales losses, unscales gradients
    before a step, and skips a step whose gradients overflow. It does nothing in any other precision.
    """
    return torch.amp.GradScaler(device.type, enabled=device_precision(precision, device) == "16-mixed")


class Float32Norm(nn.Module):
    """A LayerNorm computed in float32, with the result in the dtype of its input. Its parameters keep their
    names.
    """

    def __init__(self, norm: nn.LayerNorm) -> None:
        super().__init__()
        self.weight, self.bias = norm.weight, norm.bias
        self.shape, self.eps = norm.normalized_shape, norm.eps

    def forward(self, x: Tensor) -> Tensor:
        return layer_norm(x.float(), self.shape, self.weight, self.bias, self.eps).to(x.dtype)


def half(clip: Clip) -> Clip:
    """A copy of a CLIP with weights in float16, except for the LayerNorms, the temperature and the statistics
    of pixels, which stay in float32, and a tower that gives features only. Its identity is the original's.

    Source: ``convert_weights`` of OpenAI's CLIP (clip/model.py), with which CoOp's code (KaiyangZhou/CoOp at
    ff61507, trainers/coop.py, PREC fp16) loads it. Differs from the code: that keeps embeddings of words, of
    positions and of the class token in float32 and rounds them where they are used, with the same result.
    """
    rounded = copy.deepcopy(clip, {id(clip.tokenizer): clip.tokenizer})
    exact: list[nn.Module] = [
        block for block in (*rounded.image.blocks, *rounded.text.blocks) if isinstance(block, Opaque)
    ]
    exact_modules = {id(module) for block in exact for module in block.modules()}
    for module in [*rounded.modules()]:
        if id(module) in exact_modules:
            continue
        for name, child in [*module.named_children()]:
            if isinstance(child, nn.LayerNorm):
                setattr(module, name, Float32Norm(child))
    exact += [module for module in rounded.modules() if isinstance(module, Float32Norm)]
    unrounded = {id(parameter) for module in exact for parameter in module.parameters()}
    for parameter in rounded.parameters():
        if id(parameter) not in unrounded and parameter is not rounded.logit_scale:
            parameter.data = parameter.data.to(torch.float16)
    return rounded
