"""The model card of a pretrained tiny CLIP."""

import platform
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import torch

from dear.backbone.clip import Clip
from dear.training.settings import PretrainSettings

CARD = """\
---
license: apache-2.0
library_name: dear-vlm
pipeline_tag: zero-shot-image-classification
---
# The tiny CLIP of dear

A CLIP of {parameters:,} parameters ({depth} vision layers of {heads} heads, {text_depth} text layers,
{size} px images, patch {patch}), trained from scratch on the Attribute World: procedural pictures whose
colour, shape, texture, object and place are known. It knows nothing of photographs. It is for
demonstrations, tests and studies of attention heads with a ground truth.

| fact | value |
| --- | --- |
| command | `{command}` |
| settings | {settings} |
| seed | {seed} |
| images seen | {seen:,} in {steps:,} steps |
| final loss (running mean) | {loss} |
| time | {minutes:.0f} minutes |
| hardware | {hardware} |
| software | torch {torch} |
| weights | sha256 {sha} (of the float32 values of the tensors) |

Loss: softmax cross-entropy between images and captions in both directions, uniform over all captions of
the batch that describe an image (UniCL, CVPR 2022), because short captions describe many images.

Zero-shot accuracy from plain prompts ("a photo of a red thing."), percent, 2,000 images a row; "held-out"
images hold at least one pair of values that pretraining never showed together; "photo" leaves out
sketches, pixelated and blurred pictures (a sketch shows no colour).

| combinations | style | {factors} |
| --- | --- | {rules} |
{rows}
"""


def model_card(
    clip: Clip, run: Mapping[str, Any], accuracy: Mapping[str, Mapping[str, Mapping[str, float]]], device: str
) -> str:
    """The card in Markdown: command, seed, images, loss, time, hardware and accuracy by factor."""
    settings = run["settings"]
    rows = [
        f"| {c} | {style} | " + " | ".join(f"{100 * v:.1f}" for v in by_factor.values()) + " |"
        for c, by_style in accuracy.items()
        for style, by_factor in by_style.items()
    ]
    usual = asdict(PretrainSettings())
    changed = [f"--settings.{name} {value}" for name, value in settings.items() if value != usual[name]]
    factors = list(accuracy["held-out"]["all"])
    cpu = f"CPU ({platform.machine()}), {torch.get_num_threads()} threads"
    return CARD.format(
        parameters=run["parameters"], depth=clip.image.depth, heads=clip.image.heads,
        text_depth=clip.text.depth, size=clip.image_size, patch=clip.image.patch_size,
        command=" ".join(["dear pretrain", *changed]), seed=settings["seed"],
        settings=", ".join(f"{name} {value}" for name, value in settings.items()),
        seen=run["steps"] * settings["batch"], steps=run["steps"], loss=run["loss"],
        minutes=run["seconds"] / 60, hardware=torch.cuda.get_device_name() if device == "cuda" else cpu,
        torch=torch.__version__, sha=clip.identity.sha256, factors=" | ".join(factors),
        rules=" | ".join(["---:"]
        * len(factors)),
        rows="\n".join(rows),
    )  # fmt: skip
