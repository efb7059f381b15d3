"""The training loop: few-shot images in random views, a constant warm-up, then a cosine schedule."""

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, assert_never

import torch
from lightning_fabric import Fabric
from torch import Tensor

from dear.backbone.choice import HALF
from dear.backbone.precision import mixed, precision_for
from dear.data.dataset import Images
from dear.errors import SettingsError, TrainingDiverged, WeightsError, first_line, warn
from dear.methods.base import Method
from dear.progress import OnStep, TrainingStep, unreported
from dear.training.batches import Batches, training_images
from dear.training.checkpoint import load_checkpoint, run_fingerprint, save_checkpoint
from dear.training.devices import make_fabric, summed
from dear.training.seeding import generator
from dear.training.settings import TrainSettings
from dear.training.trunks import TrunkCache, ViewCache, view_cache

ADVICE = "Try a lower --train.lr or more --train.warmup-epochs; on a GPU also --train.precision 32-true."


def train(
    method: Method,
    images: Images,
    settings: TrainSettings,
    *,
    seed: int,
    cache: TrunkCache | None = None,
    views: ViewCache | None = None,
    checkpoint: Path | None = None,
    fabric: Fabric | None = None,
    validate: Callable[[], float] | None = None,
    label: str = "run",
    progress: OnStep = unreported,
) -> list[dict[str, Any]]:
    """Train a method on images of its current classes. Returns the mean loss, its parts and the learning rate
    of each epoch; an empty list for a method that takes no steps.

    ``cache`` keeps trunk outputs in memory for runs with the same batches; ``views`` (by default what the
    settings ask for) keeps them on disk for all runs with the same views, which requires a view seed. With
    ``checkpoint`` the state is saved there after each epoch, and an interrupted run resumes from it: with
    identical results on a CPU; on a GPU up to rounding, like any two runs, because gradients of gathered
    tokens are added there in no fixed order. With ``validate`` each epoch records its score as "val" and the
    method ends in the state of the best epoch (the first of equals); otherwise in that of the last. A
    ``fabric`` of several processes splits each batch among them: the results equal those of one process up to
    rounding, except for methods whose loss depends on which images share a batch, or that drop values at
    random. ``label`` names the run in Fabric's loggers, ``progress`` is called after each step.
    A training with too few steps to learn from is warned of.

    Raises SettingsError for ``views`` without a view seed and for weights in float16 with another precision
    than 16-true or the reverse, CheckpointError for a damaged checkpoint, and
    TrainingDiverged at the first loss that is not finite, or at the end of an epoch that leaves parameters
    not finite (after the last epoch also if the loss is no longer finite).
    """
    views = views or view_cache(settings)
    if views is not None and settings.view_seed is None:
        raise SettingsError("a view cache requires views shared between runs: give --train.view-seed.")
    like = method.clip.image.projection
    device = like.device
    if (settings.precision == HALF) != (like.dtype == torch.float16):
        raise SettingsError(
            f"precision is {settings.precision}, but the CLIP's weights are in {like.dtype}: {HALF} goes "
            "with weights in float16, which dear.backbone.precision.half makes."
        )
    settings = replace(settings, precision=precision_for(method.clip, settings.precision))
    method.text_chunk = settings.text_chunk
    try:
        method.before_training(training_images(method, images, settings, seed, cache or TrunkCache(0)))
    except torch.linalg.LinAlgError as error:  # type: ignore[attr-defined]
        raise WeightsError(
            f"{method.name} cannot be fitted: the features of {method.clip.identity.model} are not finite "
            f"numbers, or do not differ ({first_line(error)})."
        ) from error
    if not method.takes_steps:
        return []
    fabric = fabric or make_fabric(device, settings.precision)
    optimizer = _optimizer(method, settings)
    wrapped, optimizer = fabric.setup(method, optimizer, move_to_device=False)
    wrapped.mark_forward_method("loss")
    run = run_fingerprint(
        method, images.identity, settings.fingerprint_fields(), seed, "val" if validate else "last"
    )
    history: list[dict[str, Any]] = []
    best: dict[str, Any] | None = None
    batches = Batches(method, images, settings, seed, fabric, cache or TrunkCache(0), views)
    steps = batches.steps
    of_run = settings.steps_of_run(len(images), len(method.classnames), steps)
    epochs = math.ceil(of_run / steps)
    if note := settings.short_training(of_run, steps):
        warn(note)
    skips_sync = method.several_backwards and fabric.world_size > 1
    if checkpoint is not None:
        history, best = load_checkpoint(checkpoint, method, optimizer, run, fabric.strategy.precision)
    progress(TrainingStep(min(len(history) * steps, of_run), of_run, len(history), epochs))
    for epoch in range(len(history), epochs):
        start, rates = time.perf_counter(), _rates(settings, epoch, steps, of_run)
        sums: dict[str, float] = {}
        seen = 0.0
        method.train()
        for step, (rate, batch) in enumerate(zip(rates, batches.of(epoch, len(rates)), strict=True)):
            for group in optimizer.param_groups:
                group["lr"] = rate * group["rate"]
            frozen = () if batch.frozen is None else (batch.frozen,)
            labels = images.labels[batch.indices].repeat(method.views_per_image).to(device)
            method.before_step(generator(seed, "step", epoch, step))
            with fabric.no_backward_sync(wrapped, enabled=skips_sync):
                with mixed(device, settings.precision):  # Fabric applies it only to DDP's forward
                    parts = wrapped.loss(batch.trunk, labels, *frozen)
                values = dict(zip(parts, _numbers(parts.values()), strict=True))
                (diverged,) = summed(fabric, [float(not math.isfinite(values["loss"]))], device)
                if diverged:
                    raise TrainingDiverged(epoch * steps + step + 1, ADVICE, checkpoint if history else None)
                optimizer.zero_grad()
                method.backward(parts, _backward(fabric, method, batch.weight))
                del parts  # and with it a graph that was kept for a second pass
            optimizer.step()
            method.after_step((epoch * steps + step + 1) / of_run)
            counted = len(batch.indices) * (batch.weight > 0)
            for name, value in values.items():
                sums[name] = sums.get(name, 0.0) + value * counted
            seen += counted
            if step + 1 < len(rates):
                means = {name: total / max(seen, 1) for name, total in sums.items()}
                progress(TrainingStep(epoch * steps + step + 1, of_run, epoch + 1, epochs, losses=means))
        method.eval()
        finite = all(torch.isfinite(parameter).all() for parameter in method.trainable)
        if epoch + 1 == epochs:  # no later loss shows the effect of the last step
            with torch.no_grad(), mixed(device, settings.precision):
                last = wrapped.loss(batch.trunk, labels, *frozen)["loss"]
            (diverged,) = summed(fabric, [float(not torch.isfinite(last))], device)
            finite = finite and not diverged
        if not finite:  # a bad state is not saved
            raise TrainingDiverged(epoch * steps + len(rates), ADVICE, checkpoint if history else None)
        method.after_epoch(epoch + 1, epochs)
        totals = summed(fabric, list(sums.values()), device)
        images_seen = sum(batches.sizes[: len(rates)])
        means = {name: total / images_seen for name, total in zip(sums, totals, strict=True)}
        entry = {"epoch": epoch + 1, **means, "lr": rates[0]}
        if validate is not None:
            entry["val"] = validate()
            if all(entry["val"] > earlier["val"] for earlier in history):
                best = {name: tensor.detach().clone() for name, tensor in method.state_dict().items()}
        done = epoch * steps + len(rates)
        history.append(entry | {"seconds": time.perf_counter() - start})
        if checkpoint is not None and fabric.is_global_zero:
            scaling = fabric.strategy.precision.state_dict()
            save_checkpoint(checkpoint, method, optimizer, run, history, best, scaling=scaling)
        fabric.log_dict({f"{label}/{name}": value for name, value in entry.items()}, step=epoch + 1)
        progress(TrainingStep(done, of_run, epoch + 1, epochs, ends_epoch=True, losses=means))
    if best is not None:
        method.load_state_dict(best)
    return history


def _rates(settings: TrainSettings, epoch: int, steps: int, of_run: int) -> list[float]:
    """The learning rate of each step of an epoch, counted from 0, if an epoch has ``steps`` and the run
    ``of_run``: the last epoch may have fewer.
    """
    epochs, epoch_steps = of_run / steps, min(steps, of_run - epoch * steps)
    parts = [step / steps if settings.schedule == "step" else 0.0 for step in range(epoch_steps)]
    return [settings.lr_at(epoch + part, epochs) for part in parts]


def _backward(fabric: Fabric, method: Method, weight: float) -> Callable[[Tensor], None]:
    """The function that adds a loss's gradients to those of the method. If processes share the batch, DDP
    averages gradients over them, but only for one backward pass per step; with several, this function does.
    """
    several, shared = method.several_backwards, fabric.world_size > 1

    def run(loss: Tensor) -> None:
        fabric.backward(loss * weight if shared else loss, retain_graph=several)
        if several and shared:
            for parameter in method.trainable:
                gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
                mean = fabric.all_reduce(gradient, reduce_op="mean")
                assert isinstance(mean, Tensor)
                parameter.grad = mean

    return run


def _numbers(values: Iterable[Tensor]) -> list[float]:
    """Move all values to the host at once: the only point where a step waits for the GPU."""
    numbers: list[float] = torch.stack([value.detach() for value in values]).tolist()
    return numbers


def _optimizer(method: Method, settings: TrainSettings) -> Any:
    groups, lr, decay = method.parameter_groups(), settings.lr, settings.weight_decay
    match settings.optimizer:
        case "sgd":
            return torch.optim.SGD(groups, lr, momentum=settings.momentum, weight_decay=decay)
        case "adam":
            return torch.optim.Adam(groups, lr, weight_decay=decay)
        case "adamw":
            return torch.optim.AdamW(groups, lr, weight_decay=decay)
        case _:
            assert_never(settings.optimizer)
