"""Which number formats a CLIP is computed in: what "auto" means on a device, and autocast."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from dear.backbone.clip import Clip
from dear.backbone.precisions import Precision
from dear.errors import SettingsError

WIDE = 384
"""Least width of an image tower for which bfloat16 is chosen on a CPU: below it, casts take what products
gain, and the embedded CLIP gives the same numbers on every processor."""


def precision_for(clip: Clip, asked: Precision = "auto") -> Precision:
    """The precision that a CLIP is computed in if ``asked`` is "auto": bf16-mixed on a GPU, and on a CPU that
    is fast in bfloat16 for towers that are wide enough; otherwise 32-true. Any other is returned unchanged.

    Raises SettingsError for 16-mixed on a CPU. A CLIP with weights in float16 must be asked for explicitly.
    """
    like = clip.image.projection
    found = device_precision(asked, like.device)
    wide = asked == "auto" and like.device.type == "cpu" and clip.image.width >= WIDE
    return "bf16-mixed" if wide and like.dtype == torch.float32 and fast_in_bfloat16() else found


def device_precision(precision: Precision, device: torch.device) -> Precision:
    """Resolve the precision for a device alone: "auto" is float32 on a CPU and bf16-mixed on a GPU. Raises
    SettingsError for 16-mixed on a CPU, which Fabric would silently turn into bf16-mixed.
    """
    if precision == "16-mixed" and device.type == "cpu":
        raise SettingsError("precision 16-mixed needs a GPU: on a CPU use bf16-mixed or 32-true.")
    if precision != "auto":
        return precision
    return "bf16-mixed" if device.type == "cuda" else "32-true"


def fast_in_bfloat16() -> bool:
    """Whether this processor multiplies matrices faster in bfloat16 than in float32: with matrix units (AMX),
    or with AVX512-BF16 on AMD. Intel's AVX512-BF16 alone takes longer than float32 (docs/performance.md).
    """
    known = torch.cpu.get_capabilities() if hasattr(torch.cpu, "get_capabilities") else {}
    amd = str(known.get("cpu_name", "")).startswith("AMD")
    return bool(known.get("amx_bf16") or (amd and known.get("avx512_bf16")))


def mixed(device: torch.device, precision: Precision) -> AbstractContextManager[Any]:
    """Autocast context of a precision, for code that Fabric does not wrap: trunks and inference."""
    kinds: dict[Precision, torch.dtype] = {"bf16-mixed": torch.bfloat16, "16-mixed": torch.float16}
    kind = kinds.get(device_precision(precision, device))
    return nullcontext() if kind is None else torch.autocast(device.type, kind)
