"""What a CLIP is computed on and in: the device, the number of torch's threads on a CPU, the number formats
(what "auto" means on a device, autocast, float16 weights).

The environment variable DEAR_THREADS asks for threads: ``auto``, ``auto:N`` (at most N) or a number. The
`dear` command sets it. In a Python program torch's own number stays unless the program sets the variable.
The last digits of results depend on the number, so it never depends on how busy the machine is.
"""

import copy
import os
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import layer_norm

from dear.backbone.clip import Clip
from dear.backbone.names import Precision
from dear.backbone.towers import Opaque
from dear.errors import SettingsError

VARIABLE = "DEAR_THREADS"
AUTO = "auto"
MAX_THREADS = 1024
WIDE_FOR_THREADS = 320
"""Width of a tower from which more than one thread is used. Measured on two cores (docs/performance.md): two
threads are 1.4 times as fast there, and 1.07 times as slow beside a busy process; at 256, 1.2 and 1.2. [ours]
"""
WIDE_FOR_BFLOAT16 = 384
"""Width of an image tower from which bfloat16 is chosen on a CPU. Below it, casts cost what products gain,
and the embedded CLIP gives the same numbers on every processor."""


def find_device(name: str | torch.device) -> torch.device:
    """The device of this name; "auto" is the GPU if there is one. Raises SettingsError if a GPU is named but
    torch finds none.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    device = torch.device(name)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise SettingsError(f"the device {name} was requested, but torch finds no GPU: choose auto or cpu.")
    return device


def set_threads(*clips: Clip) -> None:
    """Set torch's number of threads for models that compute together, if DEAR_THREADS asks for it.

    Raises SettingsError for an invalid value of DEAR_THREADS.
    """
    threads, request = _torch_threads(), os.environ.get(VARIABLE)
    if request is None:
        return
    word, _, limit = request.partition(":")
    if limit or word != AUTO:
        threads = _parse_threads(limit or word)
    widest = max(tower.width for clip in clips for tower in (clip.image, clip.text))
    torch.set_num_threads(1 if word == AUTO and widest < WIDE_FOR_THREADS else threads)


def request_threads(threads: int) -> None:
    """Ask for a number of threads in this process and those it starts. Raises SettingsError."""
    os.environ[VARIABLE] = str(_parse_threads(str(threads)))


def threads_per_job(jobs: int) -> int:
    """Threads for each of ``jobs`` processes: its share of torch's own number, or the number asked for."""
    request = os.environ.get(VARIABLE, AUTO)
    return max(1, _torch_threads() // jobs) if request.startswith(AUTO) else _parse_threads(request)


def use_threads(threads: int) -> None:
    """Compute with this many threads in a worker process; with fewer for a small model if DEAR_THREADS is
    ``auto``.
    """
    torch.set_num_threads(threads)
    if os.environ.get(VARIABLE, "").startswith(AUTO):
        os.environ[VARIABLE] = f"{AUTO}:{threads}"


@cache
def _torch_threads() -> int:
    """Torch's own number: what it was on the first call, before any was set here."""
    return torch.get_num_threads()


def _parse_threads(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 1 <= int(text) <= MAX_THREADS):
        raise SettingsError(f"threads is {text!r}: it must be {AUTO} or a number from 1 to {MAX_THREADS}.")
    return int(text)


def precision_for(clip: Clip, precision: Precision = "auto", device: torch.device | None = None) -> Precision:
    """The precision that a CLIP is computed in. "auto" is bf16-mixed on a GPU, and on a CPU that is fast in
    bfloat16 if the image tower is wide enough; otherwise 32-true. Any other is returned unchanged. The
    device is by default the CLIP's.

    Raises SettingsError for 16-mixed on a CPU. "auto" is never 16-true, which has to be asked for.
    """
    like = clip.image.projection
    device = device or like.device
    resolved = device_precision(precision, device)
    wide = precision == "auto" and device.type == "cpu" and clip.image.width >= WIDE_FOR_BFLOAT16
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
