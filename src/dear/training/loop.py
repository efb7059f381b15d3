"""The training loop: few-shot images in random views, a constant warm-up, then a cosine schedule
(`TrainSettings.lr_at`).
"""

import math
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, assert_never

import torch
from torch import Tensor

from dear.backbone.device import gradient_scaler, mixed, precision_for
from dear.backbone.names import HALF
from dear.data.dataset import Images
from dear.errors import SettingsError, TrainingDiverged, WeightsError, first_line, warn
from dear.methods.base import Losses, Method, TrainingImages
from dear.methods.optional import UsesAllImages, step_hooks
from dear.progress import OnStep, TrainingStep, silent
from dear.training.batches import Batch, Batches, training_images
from dear.training.cache import Cache
from dear.training.checkpoint import TrainingState
from dear.training.seeding import generator
from dear.training.settings import TrainSettings

ADVICE = "Try a lower --train.lr or more --train.warmup-epochs; on a GPU also --train.precision 32-true."


def train(
    method: Method,
    images: Images,
    settings: TrainSettings,
    *,
    seed: int,
    cache: Cache | None = None,
    checkpoint: Path | None = None,
    validate: Callable[[], float] | None = None,
    progress: OnStep = silent,
) -> list[dict[str, Any]]:
    """Train a method on images of its current classes. Returns the mean loss, its parts and the learning rate
    of each epoch; an empty list for a method that takes no steps.

    ``cache`` keeps trunk outputs in memory for runs with the same batches. With ``checkpoint`` the state is
    saved there after each epoch, and an interrupted run resumes from it: with identical results on a CPU; on
    a GPU up to rounding, like any two runs, because gradients of gathered tokens are added there in no fixed
    order. A damaged checkpoint is set aside, and the training starts over.

    With ``validate`` each epoch records its score as "val" and the method ends in the state of the best epoch
    (the first of equals); otherwise in that of the last. ``progress`` is called after each step.

    Warns if there are too few steps to learn much. Raises SettingsError for weights in float16 with another
    precision than 16-true or the reverse, OutputError for a checkpoint of another run, and TrainingDiverged
    at the first loss that is not finite, or at the end of an epoch that leaves parameters not finite (after
    the last epoch also if the loss is no longer finite).
    """
    cache, device = cache or Cache(0), method.clip.image.projection.device
    settings = _with_precision(method, settings)
    method.text_chunk = settings.text_chunk
    if isinstance(method, UsesAllImages):
        _use_all_images(method, training_images(method, images, settings, seed, cache))
    if not method.declaration.takes_steps(method.settings):
        return []
    hooks, batches = step_hooks(method), Batches(method, images, settings, seed, cache)
    total = settings.total_steps(len(images), len(method.classnames), batches.epoch_steps)
    epochs = math.ceil(total / batches.epoch_steps)
    if note := settings.note_on_length(total, batches.epoch_steps):
        warn(note)
    optimizer, scaler = _build_optimizer(method, settings), gradient_scaler(device, settings.precision)
    identity = _identity(method, images, settings, seed, "val" if validate else "last")
    state = TrainingState(method, optimizer, scaler, identity, checkpoint)
    state.resume()
    step = TrainingStep(
        min(len(state.history) * batches.epoch_steps, total),
        total,
        len(state.history),
        epochs,
        method.name,
    )
    progress(step)
    for epoch in range(len(state.history), epochs):
        started, means = time.perf_counter(), MeanLosses()
        rates = _learning_rates(settings, epoch, batches.epoch_steps, total)
        method.train()
        for number, (rate, batch) in enumerate(
            zip(rates, batches.load_epoch(epoch, len(rates)), strict=True), start=1
        ):
            for group in optimizer.param_groups:
                group["lr"] = rate * group["rate"]
            hooks.before_step(generator(seed, "step", epoch, number - 1))
            with mixed(device, settings.precision):
                losses = compute_losses(method, batch, settings)
            step = replace(step, done=step.done + 1, epoch=epoch + 1)
            if not means.add(losses, len(batch.indices)):
                raise TrainingDiverged(step.done, ADVICE, state.saved)
            optimizer.zero_grad()
            hooks.backward(losses, scaler.scale)
            scaler.step(optimizer)
            scaler.update()
            hooks.after_step(step.done / total)
            if number < len(rates):
                progress(replace(step, losses=means.compute()))
        method.eval()
        if not _is_finite(method, batch if epoch + 1 == epochs else None, settings):
            raise TrainingDiverged(step.done, ADVICE, state.saved)
        hooks.after_epoch(epoch + 1, epochs)
        record: dict[str, Any] = {"epoch": epoch + 1, **means.compute(), "lr": rates[0]}
        if validate is not None:
            record["val"] = validate()
            if all(record["val"] > earlier["val"] for earlier in state.history):
                state.keep_as_best()
        state.history.append(record | {"seconds": time.perf_counter() - started})
        state.save()
        progress(replace(step, losses=means.compute(), record=state.history[-1]))
    if state.best is not None:
        method.load_state_dict(state.best)
    return state.history


def _with_precision(method: Method, settings: TrainSettings) -> TrainSettings:
    """The settings with the precision resolved. Raises SettingsError if it does not fit the weights."""
    like = method.clip.image.projection
    if (settings.precision == HALF) != (like.dtype == torch.float16):
        raise SettingsError(
            f"precision is {settings.precision}, but the CLIP's weights are in {like.dtype}: {HALF} goes "
            "with weights in float16, which dear.backbone.device.half makes."
        )
    return replace(settings, precision=precision_for(method.clip, settings.precision))


def _use_all_images(method: Method, images: TrainingImages) -> None:
    """Call the method's ``before_training``. Raises WeightsError if the features do not allow it."""
    assert isinstance(method, UsesAllImages)
    try:
        method.before_training(images)
    except torch.linalg.LinAlgError as error:  # type: ignore[attr-defined]
        raise WeightsError(
            f"{method.name} cannot be fitted: the features of {method.clip.identity.model} are not finite "
            f"numbers, or do not differ ({first_line(error)})."
        ) from error


def _identity(
    method: Method, images: Images, settings: TrainSettings, seed: int, select: str
) -> dict[str, Any]:
    """What a training depends on. ``select`` is the rule that selects an epoch."""
    return {
        "method": method.name,
        "method_settings": method.fingerprint_fields(),
        "weights": method.clip.identity.sha256,
        "classes": method.classnames,
        "images": images.identity,
        "seed": seed,
        "select": select,
        "train": settings.fingerprint_fields(),
    }


def _build_optimizer(method: Method, settings: TrainSettings) -> torch.optim.Optimizer:
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


def loss_terms(method: Method, settings: TrainSettings) -> Losses:
    """The terms of the loss that do not depend on the method, by name and with their weights: for every
    method that is trained in steps. There are none so far.
    """
    del method, settings
    return {}


def compute_losses(method: Method, batch: Batch, settings: TrainSettings) -> Losses:
    """The losses of a batch: the method's, to which the terms of all methods are added."""
    losses, terms = method.loss(batch.trunk, batch.labels, batch.frozen), loss_terms(method, settings)
    return {**losses, **terms, "loss": sum(terms.values(), losses["loss"])}


def _is_finite(method: Method, batch: Batch | None, settings: TrainSettings) -> bool:
    """True if all parameters are finite; with a batch, if its loss is too: no step follows the last epoch
    that would notice.
    """
    if not all(torch.isfinite(parameter).all() for parameter in method.trainable):
        return False
    if batch is None:
        return True
    with torch.no_grad(), mixed(batch.trunk.device, settings.precision):
        return bool(torch.isfinite(compute_losses(method, batch, settings)["loss"]))


def _learning_rates(settings: TrainSettings, epoch: int, epoch_steps: int, total: int) -> list[float]:
    """The learning rate of each step of an epoch, of which the last epoch may have fewer."""
    steps, by_step = min(epoch_steps, total - epoch * epoch_steps), settings.schedule == "step"
    parts = [step / epoch_steps if by_step else 0.0 for step in range(steps)]
    return [settings.lr_at(epoch + part, total / epoch_steps) for part in parts]


class MeanLosses:
    """The means of the losses of an epoch over its images so far."""

    def __init__(self) -> None:
        self._sums, self._images = dict[str, float](), 0

    def add(self, losses: Losses, images: int) -> bool:
        """Add the mean losses of a batch. Returns whether its loss is finite."""
        values: list[Tensor] = [value.detach() for value in losses.values()]
        # Move all values to the host at once: the only point where a step waits for the GPU.
        for name, value in zip(losses, torch.stack(values).tolist(), strict=True):
            self._sums[name] = self._sums.get(name, 0.0) + value * images
        self._images += images
        return math.isfinite(self._sums["loss"])

    def compute(self) -> dict[str, float]:
        """The means by name."""
        return {name: total / self._images for name, total in self._sums.items()}
