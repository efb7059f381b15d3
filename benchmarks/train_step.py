"""A training step of DeAR against the usual code: both towers in full, student and teacher, 77-token text.

    python benchmarks/train_step.py --classes 50 500
    python benchmarks/train_step.py --regularization --repeats 9

Times a step (forward and backward; ViT-B/16, random weights, random images) of the naive reference of the
tests, with torch's fused attention, and of this package, in turn in one process. The memory of each kind's
step is the resident peak of a separate process, minus what was resident before it. FLOPs are those that torch
counts; their share is relative to the rate of a large matrix product measured in the same process.

With --regularization: what L_reg adds to a step of this package, whose frozen features go on from the trunk's
outputs, and what it would add by a second pass through the whole image tower. "Time" is the median over the
repeats of the ratio to the step without it in the same repeat, with the lowest and the highest of these.
"""

import argparse
import json
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import measure
import torch
from torch import Tensor
from torch.nn.functional import linear, scaled_dot_product_attention

from dear.backbone.clip import fill
from dear.methods.dear.method import fusion_loss

sys.path.insert(0, str(Path(__file__).parents[1]))  # for tools.parity, wherever this is run
from tools.parity import naive

KINDS = ("naive", "ours")
REGULARIZATION = "without L_reg", "L_reg", "L_reg by a second pass"


def fused_attention(block: Any, x: Tensor, mask: Tensor) -> Tensor:
    """The naive reference's attention with torch's fused kernel, as the usual code has it."""
    mha = block.attn
    qkv = linear(x, mha.in_proj_weight, mha.in_proj_bias)
    q, k, v = (y.unflatten(2, (mha.num_heads, -1)).transpose(1, 2) for y in qkv.chunk(3, dim=-1))
    bias = mask.to(x)[None] if mask.any() else None
    return mha.out_proj(scaled_dot_product_attention(q, k, v, attn_mask=bias).transpose(1, 2).flatten(2))


def make_steps(options: argparse.Namespace, classes: int) -> dict[str, Callable[[], None]]:
    """A step of each kind, or of the one in ``options.only``."""
    model, clip = measure.build_network(options)
    names = measure.class_names(classes)
    method = measure.dear_on(clip, names)
    method.text_chunk = options.text_chunk
    pixels = torch.rand(options.batch, 3, clip.image_size, clip.image_size, device=options.device)
    labels = torch.arange(options.batch, device=options.device) % classes
    ids = clip.tokenize(fill(measure.TEMPLATE, names))
    parameters = {name: p.detach().clone().requires_grad_() for name, p in method.named_parameters()}
    masks = dict(enumerate(method.mask, start=method.image_from))
    naive.attention = fused_attention  # type: ignore[assignment]
    kinds = (options.only,) if options.only else KINDS

    def usual() -> Tensor:
        return naive.loss(
            model, clip.normalize_pixels(pixels), ids, labels, parameters, masks,
            image_first=method.image_from, text_first=method.text_from, beta=0.9, each=1,
            lambda_reg=1.0, lambda_fusion=0.7,
        )  # fmt: skip

    def ours() -> Tensor:
        return method.loss(method.image_trunk(pixels), labels)["loss"]

    def step(loss: Callable[[], Tensor]) -> None:
        for parameter in (*parameters.values(), *method.parameters()):
            parameter.grad = None
        loss().backward()

    losses = dict(zip(KINDS, (usual, ours), strict=True))
    return {kind: lambda loss=losses[kind]: step(loss) for kind in kinds}


def measure_regularization(options: argparse.Namespace, classes: int) -> list[dict[str, Any]]:
    """A row for each of ``REGULARIZATION``."""
    _, clip = measure.build_network(options)
    method = measure.dear_on(clip, measure.class_names(classes))
    pixels = torch.rand(options.batch, 3, clip.image_size, clip.image_size, device=options.device)
    labels = torch.arange(options.batch, device=options.device) % classes

    def without() -> Tensor:
        image, text = method.image_features(method.image_trunk(pixels)), method.text_features()
        fusion = fusion_loss(method.alpha[0], method.settings.fusion_loss)
        return method.label_loss(method.training_logits(image, text), labels) + 0.7 * fusion

    def usual() -> Tensor:
        return method.loss(method.image_trunk(pixels), labels)["loss"]

    def second_pass() -> Tensor:
        frozen = method.frozen_image(method.image_trunk(pixels))
        return method.loss(method.image_trunk(pixels), labels, frozen)["loss"]

    def step(loss: Callable[[], Tensor]) -> None:
        method.zero_grad()
        loss().backward()

    losses = zip(REGULARIZATION, (without, usual, second_pass), strict=True)
    steps = {kind: lambda loss=loss: step(loss) for kind, loss in losses}
    flops = {kind: measure.count_flops(run) for kind, run in steps.items()}  # which also warms them up
    timings = measure.time_in_turn(steps, options.repeats, options.device)
    plain = REGULARIZATION[0]
    rows = []
    for kind, timing in timings.items():
        ratios = [ours / its for ours, its in zip(timing.wall, timings[plain].wall, strict=True)]
        rows.append(
            {
                "kind": kind,
                "seconds": timing.seconds,
                "time": statistics.median(ratios),
                "lowest": min(ratios),
                "highest": max(ratios),
                "arithmetic": flops[kind] / flops[plain],
                "all seconds": timing.all_seconds,
            }
        )
    return rows


def measure_steps(options: argparse.Namespace, classes: int, rate: float) -> list[dict[str, Any]]:
    """A row for each kind."""
    steps = make_steps(options, classes)
    flops = {kind: measure.count_flops(step) for kind, step in steps.items()}  # which also warms them up
    timings = measure.time_in_turn(steps, options.repeats, options.device)
    rows = []
    for kind, timing in timings.items():
        arguments = ["--only", kind, "--classes", classes]
        for name in ("batch", "model", "device", "threads", "text_chunk"):
            arguments += [f"--{name.replace('_', '-')}", getattr(options, name)]
        row = {
            "classes": classes,
            "kind": kind,
            "seconds": timing.seconds,
            "times naive": timings["naive"].seconds / timing.seconds,
            "arithmetic allows": flops["naive"] / flops[kind],
            "GFLOP": flops[kind] / 1e9,
            "GFLOP/s": flops[kind] / timing.seconds / 1e9,
            "share of matrix rate": flops[kind] / timing.seconds / rate,
        }
        rows.append(row | measure.in_child(arguments) | {"all seconds": timing.all_seconds})
    return rows


def main() -> None:
    parser = measure.make_parser(__doc__)
    parser.add_argument("--classes", type=int, nargs="+", default=[50, 500])
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument(
        "--text-chunk", type=int, default=0, help="prompts at a time in our text span; 0: all"
    )
    parser.add_argument("--regularization", action="store_true", help="measure what L_reg adds instead")
    parser.add_argument("--only", choices=KINDS, help="memory of a step of one kind, in this process")
    options = measure.parse(parser)
    if options.only:
        step = make_steps(options, options.classes[0])[options.only]
        print(json.dumps(measure.step_memory(step, options.device)))
        return
    if options.regularization:
        rows = measure_regularization(options, options.classes[0])
        options.classes = options.classes[0]
        measure.show(options, rows, ["model", "batch", "classes", "repeats"])
        return
    rate = measure.matrix_rate(options.device)
    rows = [row for classes in options.classes for row in measure_steps(options, classes, rate)]
    settings = ["model", "batch", "repeats", "text_chunk"]
    measure.show(options, rows, settings, **{"matrix GFLOP/s": rate / 1e9})


if __name__ == "__main__":
    main()
