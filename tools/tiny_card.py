"""The model card of a pretrained tiny CLIP."""

import platform
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import torch

from dear.backbone.clip import Clip
from dear.roles.table import RoleTable
from tools.gathering import Gathering
from tools.pretrain_settings import PretrainSettings

CARD = """\
---
license: apache-2.0
library_name: dear-vlm
pipeline_tag: zero-shot-image-classification
---
# The tiny CLIP of dear

A CLIP with {parameters:,} parameters ({depth} vision layers of {heads} heads, {text_depth} text layers,
{size} px images, patch size {patch}), trained from scratch on the Attribute World: procedural images whose
colour, shape, texture, object and place are known. It has never seen photographs. It is intended for
demonstrations, tests and studies of attention heads with a ground truth.

| fact | value |
| --- | --- |
{stages}
| hardware | {hardware} |
| software | torch {torch} |
| weights | sha256 {sha} (of the float32 values of the tensors) |

Loss: softmax cross-entropy between images and captions in both directions, with targets uniform over all
captions of the batch that describe an image (UniCL, CVPR 2022), because short captions describe many images.
A weight `late` adds a term that keeps the class token from varying with the image before layer `late_first`,
and `late_mlp` one that makes attention heads, not MLPs, build it from there on (`tools/pretraining.py`).

Zero-shot accuracy from plain prompts ("a photo of a red thing."), percent, 2,000 images per row; "held-out"
images contain at least one pair of values that pretraining never showed together; "photo" excludes sketches,
pixelated and blurred images (a sketch shows no colour).

| combinations | style | {factors} |
| --- | --- | {rules} |
{rows}

Where the class token is built: zero-shot accuracy on the test images of each task (percent, all classes),
with the contributions of all heads of layers {late} replaced by their means, and with those of layers
{early} (mean ablation). In real ViT CLIPs the late attention layers build the class token (Gandelsman et
al., ICLR 2024).

| task | chance | whole | late heads ablated | early heads ablated |
| --- | ---: | ---: | ---: | ---: |
{gathered}

Heads of layers {late} that vary mainly with one factor (at least {core:.0%} of the variance of their
contributions that the five factors explain): {specialised}.
"""


def model_card(
    clip: Clip,
    run: Mapping[str, Any],
    accuracy: Mapping[str, Mapping[str, Mapping[str, float]]],
    device: str,
    *,
    gathered: Sequence[Gathering],
    roles: RoleTable,
) -> str:
    """The card in Markdown: commands, images, loss, time, hardware, accuracy by factor, and which heads build
    the class token. ``roles`` is the ground-truth table.
    """
    rows = [
        f"| {c} | {style} | " + " | ".join(f"{100 * v:.1f}" for v in by_factor.values()) + " |"
        for c, by_style in accuracy.items()
        for style, by_factor in by_style.items()
    ]
    factors = list(accuracy["held-out"]["all"])
    cpu = f"CPU ({platform.machine()}), {torch.get_num_threads()} threads"
    first, core = min(head.layer for head in roles.heads), float(roles.settings["core"])
    clear = Counter(head.concept for head in roles.heads if max(head.share.values()) >= core)
    return CARD.format(
        parameters=run["parameters"], depth=clip.image.depth, heads=clip.image.heads,
        text_depth=clip.text.depth, size=clip.image_size, patch=clip.image.patch_size,
        stages="\n".join(_stages(run)), hardware=torch.cuda.get_device_name() if device == "cuda" else cpu,
        torch=torch.__version__, sha=clip.identity.sha256, factors=" | ".join(factors),
        rules=" | ".join(["---:"] * len(factors)), rows="\n".join(rows),
        late=f"{first} to {clip.image.depth}", early=f"1 to {first - 1}", core=core,
        gathered="\n".join(_gathered(one) for one in gathered),
        specialised=", ".join(f"{name} {clear[name]}" for name in roles.attributes),
    )  # fmt: skip


def _stages(run: Mapping[str, Any]) -> list[str]:
    """Table rows of the run, preceded by those of the runs that it started from."""
    start = run.get("start") or {}
    before = _stages(start["run"]) if start.get("run") else []
    settings, usual = run["settings"], asdict(PretrainSettings())
    changed = [_option(name, value) for name, value in settings.items() if value != usual[name]]
    begun = ["--start FOLDER"] if start else []
    of = ", of the run above" if before else ""
    begun_with = {"FOLDER": f"weights of sha256 {start['sha256']}{of}"} if start else {}
    rows = {
        "command": f"`{' '.join(['python -m tools.pretrain', *begun, *changed])}`",
        **begun_with,
        "settings": ", ".join(f"{name} {value}" for name, value in settings.items()),
        "images seen": f"{run['steps'] * settings['batch']:,} in {run['steps']:,} steps",
        "final loss (running mean)": run["loss"],
        "time": f"{run['seconds'] / 60:.0f} minutes",
    }
    return before + [f"| {name} | {value} |" for name, value in rows.items()]


def _option(name: str, value: object) -> str:
    option = name.replace("_", "-")
    return f"--{'' if value else 'no-'}{option}" if isinstance(value, bool) else f"--{option} {value}"


def _gathered(one: Gathering) -> str:
    shares = (one.chance, one.whole, one.without_late, one.without_early)
    return f"| {one.task} | " + " | ".join(f"{100 * share:.1f}" for share in shares) + " |"
