"""The one training loop: few-shot images in random views, AdamW, a cosine after a constant warm-up."""

import math
import time
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from lightning_fabric import Fabric
from torch import Tensor

from dear.data.dataset import Images
from dear.data.views import train_views
from dear.errors import TrainingDiverged
from dear.methods.contract import Method
from dear.training.checkpoint import load_checkpoint, run_facts, save_checkpoint
from dear.training.seeding import generator
from dear.training.settings import TrainSettings
from dear.training.trunks import TrunkCache

ADVICE = "Try a lower --train.lr or more --train.warmup-epochs; on a GPU also --train.precision 32-true."


def train(
    method: Method,
    images: Images,
    settings: TrainSettings,
    *,
    seed: int,
    cache: TrunkCache | None = None,
    checkpoint: Path | None = None,
    progress: Callable[[int, dict[str, float]], None] = lambda _epoch, _parts: None,
) -> list[dict[str, Any]]:
    """Train a method on images of its current classes; returns each epoch's mean loss, its parts and
    learning rate.

    With ``checkpoint`` the state after each epoch is kept there and a run that was cut off goes on from
    it, to the same numbers. Raises TrainingDiverged at the first loss that is not finite, or at the end of
    an epoch that left parameters not finite.
    """
    device = method.clip.image.projection.device
    precision = settings.precision
    if precision == "auto":
        precision = "bf16-mixed" if device.type == "cuda" else "32-true"
    fabric = Fabric(accelerator=device.type, devices=1, precision=precision)
    optimizer: Any = torch.optim.AdamW(method.trainable, lr=settings.lr, weight_decay=settings.weight_decay)
    wrapped, optimizer = fabric.setup(method, optimizer, move_to_device=False)
    wrapped.mark_forward_method("loss")
    run = run_facts(method, images.identity, asdict(settings), seed)
    history = [] if checkpoint is None else load_checkpoint(checkpoint, method, optimizer, run)
    steps = math.ceil(len(images) / settings.batch)
    cache = cache or TrunkCache(0)
    for epoch in range(len(history), settings.epochs):
        start = time.perf_counter()
        for group in optimizer.param_groups:
            group["lr"] = settings.lr_at(epoch)
        order = torch.randperm(len(images), generator=generator(seed, "order", epoch))
        sums: dict[str, float] = {}
        for step, chosen in enumerate(order.split(settings.batch)):
            key = (
                images.identity,
                method.clip.identity.sha256,
                method.image_from,
                seed,
                epoch,
                step,
                settings.batch,
            )
            trunk = cache.get(key, partial(_views_trunk, method, images, chosen, seed, epoch, step))
            parts = wrapped.loss(trunk, images.labels[chosen].to(device))
            if not torch.isfinite(parts["loss"]):
                raise TrainingDiverged(epoch * steps + step + 1, ADVICE, checkpoint if history else None)
            optimizer.zero_grad()
            fabric.backward(parts["loss"])
            optimizer.step()
            method.after_step((epoch * steps + step + 1) / (settings.epochs * steps))
            for name, value in parts.items():
                sums[name] = sums.get(name, 0.0) + float(value.detach()) * len(chosen)
        if not all(
            torch.isfinite(p).all() for p in method.trainable
        ):  # a gradient of the last step; no bad state is kept
            raise TrainingDiverged((epoch + 1) * steps, ADVICE, checkpoint if history else None)
        means = {name: total / len(images) for name, total in sums.items()}
        history.append(
            {"epoch": epoch + 1, **means, "lr": settings.lr_at(epoch), "seconds": time.perf_counter() - start}
        )
        if checkpoint is not None:
            save_checkpoint(checkpoint, method, optimizer, run, history)
        progress(epoch + 1, means)
    return history


def _views_trunk(
    method: Method, images: Images, chosen: Tensor, seed: int, epoch: int, step: int
) -> Float[Tensor, "batch token width"]:
    """Trunk outputs of a step's random views, which depend on the seed, epoch and step only, not on the
    method.
    """
    views = train_views(images.load(chosen), method.clip.image_size, generator(seed, "views", epoch, step))
    return method.image_trunk(views.to(method.clip.image.projection))
