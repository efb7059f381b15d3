"""A training step of DeAR against the usual code: both towers in full, student and teacher, 77-token text.

    python benchmarks/train_step.py --classes 50 500 --json

Times a step (forward and backward; ViT-B/16, random weights, random images) of the naive reference and of
this package, in turn in one process. Losses and gradients are compared. The memory of each kind's step is the
resident peak of a separate process, minus what was resident before it. FLOPs are those that torch counts;
their share is relative to the rate of a large matrix product measured in the same process.
"""

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import measure
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from dear.backbone.clip import fill

ROOT = Path(__file__).parents[1]
KINDS = ("naive", "ours")


def fused(block: Any, x: Tensor, mask: Tensor) -> Tensor:
    """The naive reference's attention with torch's fused kernel, as the usual code has it."""
    mha = block.attn
    qkv = torch.nn.functional.linear(x, mha.in_proj_weight, mha.in_proj_bias)
    q, k, v = (y.unflatten(2, (mha.num_heads, -1)).transpose(1, 2) for y in qkv.chunk(3, dim=-1))
    bias = mask.to(x)[None] if mask.any() else None
    return mha.out_proj(scaled_dot_product_attention(q, k, v, attn_mask=bias).transpose(1, 2).flatten(2))


def usual_code() -> Any:
    """The tests' naive reference, with the fused attention."""
    sys.path.insert(0, str(ROOT))
    from tests.parity import naive

    naive.attention = fused  # type: ignore[assignment]
    return naive


def steps(
    options: argparse.Namespace, classes: int
) -> tuple[dict[str, Callable[[], Tensor]], dict[str, dict[str, Tensor]]]:
    """A step of each kind, and the parameters of naive and ours with their gradients."""
    model, clip = measure.network(options)
    names = measure.class_names(classes)
    method = measure.dear_on(clip, names)
    method.text_chunk = options.text_chunk
    pixels = torch.rand(options.batch, 3, clip.image_size, clip.image_size, device=options.device)
    labels = torch.arange(options.batch, device=options.device) % classes
    ids = clip.tokenize(fill("a photo of a {}.", names))
    parameters = {name: p.detach().clone().requires_grad_() for name, p in method.named_parameters()}
    masks = dict(enumerate(method.mask, start=method.image_from))
    naive = usual_code()

    def usual() -> Tensor:
        _forget(parameters)
        loss = naive.loss(
            model, clip.normalize_pixels(pixels), ids, labels, parameters, masks,
            image_first=method.image_from, text_first=method.text_from, beta=0.9, each=1,
            lambda_reg=1.0, lambda_fusion=0.7,
        )  # fmt: skip
        loss.backward()
        return loss

    def ours() -> Tensor:
        _forget(dict(method.named_parameters()))
        loss = method.loss(method.image_trunk(pixels), labels)["loss"]
        loss.backward()
        return loss

    given = {"naive": parameters, "ours": dict(method.named_parameters())}
    return dict(zip(KINDS, (usual, ours), strict=True)), given


def _forget(parameters: Any) -> None:
    for parameter in parameters.values():
        parameter.grad = None


def differences(
    kinds: dict[str, Callable[[], Tensor]], given: dict[str, dict[str, Tensor]]
) -> dict[str, float]:
    """Difference between ours and naive: of the loss, and the largest of a gradient relative to its largest
    entry.
    """
    one, other = float(kinds["naive"]().detach()), float(kinds["ours"]().detach())
    gaps = []
    for name, wanted in given["naive"].items():
        got = given["ours"][name].grad
        assert wanted.grad is not None
        assert got is not None
        gaps.append(float((got - wanted.grad).abs().max() / wanted.grad.abs().max()))
    return {"loss": abs(one - other) / abs(one), "gradient": max(gaps)}


def measured(options: argparse.Namespace, classes: int, rate: float) -> list[dict[str, Any]]:
    kinds, given = steps(options, classes)
    gap = differences(kinds, given)
    flops = {kind: measure.count_flops(kinds[kind]) for kind in KINDS}  # which also warms them up
    seconds = measure.in_turn(kinds, options.repeats, options.device)
    median = measure.medians(seconds)
    rows = []
    for kind in KINDS:
        memory = None if options.no_memory else _memory(options, classes, kind)
        rows.append(
            {
                "classes": classes,
                "kind": kind,
                "seconds": median[kind],
                "times naive": median["naive"] / median[kind],
                "arithmetic allows": flops["naive"] / flops[kind],
                "GFLOP": flops[kind] / 1e9,
                "GFLOP/s": flops[kind] / median[kind] / 1e9,
                "share of matrix rate": flops[kind] / median[kind] / rate,
                "step MiB": None if memory is None else memory["step"],
                "peak MiB": None if memory is None else memory["peak"],
                "all seconds": [round(one, 4) for one in seconds[kind]],
                "gap to naive": gap if kind == "ours" else None,
            }
        )
    return rows


def _memory(options: argparse.Namespace, classes: int, kind: str) -> dict[str, float]:
    arguments = ["--only", kind, "--classes", str(classes), "--batch", str(options.batch)]
    arguments += ["--model", options.model, "--device", options.device]
    arguments += ["--threads", str(options.threads), "--text-chunk", str(options.text_chunk)]
    found: dict[str, float] = measure.in_child([*arguments, *(["--tiny"] if options.tiny else [])])
    return found


def main() -> None:
    made = measure.parser(__doc__)
    made.add_argument("--classes", type=int, nargs="+", default=[50, 500])
    made.add_argument("--batch", type=int, default=16)
    made.add_argument("--text-chunk", type=int, default=0, help="prompts at a time in our text span; 0: all")
    made.add_argument("--no-memory", action="store_true", help="time only")
    made.add_argument("--only", choices=KINDS, help=argparse.SUPPRESS)
    options = measure.parsed(made)
    if options.only:
        kinds, _ = steps(options, options.classes[0])
        print(json.dumps(measure.step_memory(kinds[options.only], options.device)))
        return
    rate = measure.matrix_rate(options)
    rows = [row for classes in options.classes for row in measured(options, classes, rate)]
    facts = {name: getattr(options, name) for name in ("model", "tiny", "batch", "repeats")}
    result = {
        "benchmark": "train_step",
        "machine": measure.machine(),
        "matrix GFLOP/s": rate / 1e9,
        "settings": facts | {"text_chunk": options.text_chunk, "precision": "float32"},
        "rows": rows,
    }
    measure.show(result, options)


if __name__ == "__main__":
    main()
