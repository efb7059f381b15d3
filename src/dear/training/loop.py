"""The training loop: few-shot images in random views, a constant warm-up, then a cosine schedule
(`TrainSettings.lr_at`).
"""

import json
import math
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any, assert_never

import torch
from lightning_fabric import Fabric
from torch import Tensor

from dear.backbone.choice import HALF
from dear.backbone.precision import mixed, precision_for
from dear.data.dataset import Images
from dear.errors import OutputError, SettingsError, TrainingDiverged, WeightsError, first_line, warn
from dear.methods.base import Method, TrainingImages
from dear.progress import OnStep, TrainingStep, unreported
from dear.training.batches import Batch, Batches, training_images
from dear.training.checkpoint import CheckpointError, read_state, set_aside, write_state
from dear.training.devices import make_fabric, sum_over_processes
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
    fabric: Fabric | None = None,
    validate: Callable[[], float] | None = None,
    label: str = "run",
    progress: OnStep = unreported,
) -> list[dict[str, Any]]:
    """Train a method on images of its current classes. Returns the mean loss, its parts and the learning rate
    of each epoch; an empty list for a method that takes no steps.

    ``cache`` keeps trunk outputs in memory for runs with the same batches. With ``checkpoint`` the state is
    saved there after each epoch, and an interrupted run resumes from it: with identical results on a CPU; on
    a GPU up to rounding, like any two runs, because gradients of gathered tokens are added there in no fixed
    order. A damaged checkpoint is set aside, and the training starts over.

    With ``validate`` each epoch records its score as "val" and the method ends in the state of the best epoch
    (the first of equals); otherwise in that of the last. A ``fabric`` of several processes splits each batch
    among them: the results equal those of one process up to rounding, except for methods whose loss depends
    on which images share a batch, or that drop values at random. ``label`` names the run in Fabric's loggers,
    ``progress`` is called after each step.

    Warns if there are too few steps to learn much. Raises SettingsError for weights in float16 with another
    precision than 16-true or the reverse, OutputError for a checkpoint of another run, and TrainingDiverged
    at the first loss that is not finite, or at the end of an epoch that leaves parameters not finite (after
    the last epoch also if the loss is no longer finite).
    """
    cache = cache or TrunkCache(0)
    settings = _with_precision(method, settings)
    method.text_chunk = settings.text_chunk
    _prepare(method, training_images(method, images, settings, seed, cache))
    if not method.takes_steps:
        return []
    fabric = fabric or make_fabric(method.clip.image.projection.device, settings.precision)
    batches = Batches(method, images, settings, seed, fabric, cache)
    loop = _Loop(method, images, settings, seed, fabric, batches, checkpoint, progress)
    loop.resume("val" if validate else "last")
    for epoch in range(len(loop.history), loop.epochs):
        loop.begin_epoch(epoch)
        for batch in batches.load_epoch(epoch, len(loop.rates)):
            loop.begin_step()
            with loop.without_sync():
                with loop.autocast():
                    losses = loop.wrapped.loss(*loop.inputs(batch))
                loop.backward(losses, batch)
            loop.end_step()
        entry = loop.end_epoch(batch, validate)
        fabric.log_dict({f"{label}/{name}": value for name, value in entry.items()}, step=epoch + 1)
        loop.report_progress(loop.means)
    if loop.best is not None:
        method.load_state_dict(loop.best)
    return loop.history


def _with_precision(method: Method, settings: TrainSettings) -> TrainSettings:
    """The settings with the precision resolved. Raises SettingsError if it does not fit the weights."""
    like = method.clip.image.projection
    if (settings.precision == HALF) != (like.dtype == torch.float16):
        raise SettingsError(
            f"precision is {settings.precision}, but the CLIP's weights are in {like.dtype}: {HALF} goes "
            "with weights in float16, which dear.backbone.precision.half makes."
        )
    return replace(settings, precision=precision_for(method.clip, settings.precision))


def _prepare(method: Method, images: TrainingImages) -> None:
    """Call the method's ``before_training``. Raises WeightsError if the features do not allow it."""
    try:
        method.before_training(images)
    except torch.linalg.LinAlgError as error:  # type: ignore[attr-defined]
        raise WeightsError(
            f"{method.name} cannot be fitted: the features of {method.clip.identity.model} are not finite "
            f"numbers, or do not differ ({first_line(error)})."
        ) from error


class _Loop:
    """The state of a training between steps.

    Attributes:
        total: Steps of the whole training.
        epochs: Its epochs, the last of which may have fewer steps.
        identity: What the training depends on: a checkpoint only fits one with the same.
        history: The record of each finished epoch.
        best: The method's state after the best epoch, if one is selected.
        epoch, step: The current epoch, and the current step in it, both counted from 0.
        rates: The learning rate of each step of the epoch.
        sums: The losses of the epoch so far, each times the number of its images; ``images_seen`` of these.
        means: The mean losses of the last finished epoch, over the images of all processes.
    """

    def __init__(
        self,
        method: Method,
        images: Images,
        settings: TrainSettings,
        seed: int,
        fabric: Fabric,
        batches: Batches,
        checkpoint: Path | None,
        progress: OnStep,
    ) -> None:
        self.method, self.images, self.settings, self.seed = method, images, settings, seed
        self.fabric, self.batches, self.checkpoint, self.progress = fabric, batches, checkpoint, progress
        self.device = method.clip.image.projection.device
        self.wrapped, self.optimizer = fabric.setup(
            method, _optimizer(method, settings), move_to_device=False
        )
        self.wrapped.mark_forward_method("loss")
        self.total = settings.total_steps(len(images), len(method.classnames), batches.epoch_steps)
        self.epochs = math.ceil(self.total / batches.epoch_steps)
        self.history: list[dict[str, Any]] = []
        self.best: dict[str, Any] | None = None
        if note := settings.note_on_length(self.total, batches.epoch_steps):
            warn(note)

    def resume(self, select: str) -> None:
        """Go on from the checkpoint, if there is one. ``select`` is the rule that selects an epoch."""
        self.identity = {
            "method": self.method.name,
            "method_settings": self.method.fingerprint_fields(),
            "weights": self.method.clip.identity.sha256,
            "classes": self.method.classnames,
            "images": self.images.identity,
            "seed": self.seed,
            "select": select,
            "train": self.settings.fingerprint_fields(),
        }
        if self.checkpoint is not None and self.checkpoint.exists():
            initial = deepcopy((self.method.state_dict(), self.optimizer.state_dict()))
            try:
                self.load(self.checkpoint)
            except CheckpointError:
                self.method.load_state_dict(initial[0])  # a part of the checkpoint may be loaded
                self.optimizer.load_state_dict(initial[1])
                self.fabric.barrier()  # every process has read it
                if self.fabric.is_global_zero:
                    set_aside(self.checkpoint)
        done = len(self.history)
        steps = min(done * self.batches.epoch_steps, self.total)
        self.progress(TrainingStep(steps, self.total, done, self.epochs))

    def load(self, path: Path) -> None:
        """Take the state from a checkpoint. Raises CheckpointError for a damaged one, OutputError for one of
        another training.
        """
        state = read_state(path)
        try:
            saved, identity = json.loads(state["run"]), json.loads(json.dumps(self.identity))
            if differences := ", ".join(name for name in identity if saved.get(name) != identity[name]):
                raise OutputError(
                    f"{path} is the checkpoint of another run (different {differences}): "
                    "remove it or choose another --out."
                )
            history, best = json.loads(state["history"]), state["best"]
            self.fabric.strategy.precision.load_state_dict(state["scaling"])
            self.method.load_state_dict(state["method"])
            self.optimizer.load_state_dict(state["optimizer"])
        except (AttributeError, KeyError, RuntimeError, TypeError, ValueError) as error:
            raise CheckpointError(path, first_line(error)) from error
        self.history, self.best = history, best

    def save(self) -> None:
        """Replace the checkpoint."""
        if self.checkpoint is not None and self.fabric.is_global_zero:
            state = {
                "run": json.dumps(self.identity),
                "history": json.dumps(self.history),
                "method": self.method.state_dict(),
                "optimizer": self.optimizer.state_dict(),
                "best": self.best,
                "scaling": dict(self.fabric.strategy.precision.state_dict()),
            }
            write_state(self.checkpoint, state)

    @property
    def done(self) -> int:
        """The number of steps taken, the current one included."""
        return self.epoch * self.batches.epoch_steps + self.step + 1

    def begin_epoch(self, epoch: int) -> None:
        """Set the learning rates of an epoch's steps, of which the last epoch may have fewer."""
        steps, by_step = self.batches.epoch_steps, self.settings.schedule == "step"
        parts = [step / steps if by_step else 0.0 for step in range(min(steps, self.total - epoch * steps))]
        self.rates = [self.settings.lr_at(epoch + part, self.total / steps) for part in parts]
        self.epoch, self.step, self.started = epoch, -1, time.perf_counter()
        self.sums, self.images_seen = dict[str, float](), 0.0
        self.method.train()

    def begin_step(self) -> None:
        """Set the learning rate of the next step, and let the method draw what it needs for it."""
        self.step += 1
        for group in self.optimizer.param_groups:
            group["lr"] = self.rates[self.step] * group["rate"]
        self.method.before_step(generator(self.seed, "step", self.epoch, self.step))

    def without_sync(self) -> AbstractContextManager[None]:
        """Keep DDP from averaging gradients, for a method with several backward passes (`_backward`)."""
        skips_sync = self.method.several_backwards and self.fabric.world_size > 1
        return self.fabric.no_backward_sync(self.wrapped, enabled=skips_sync)

    def autocast(self) -> AbstractContextManager[None]:
        """The precision of the losses, which Fabric applies to DDP's forward only."""
        return mixed(self.device, self.settings.precision)

    def inputs(self, batch: Batch) -> tuple[Tensor, ...]:
        """The arguments of the method's loss."""
        labels = self.images.labels[batch.indices].repeat(self.method.views_per_image).to(self.device)
        return (batch.trunk, labels) if batch.frozen is None else (batch.trunk, labels, batch.frozen)

    def backward(self, losses: dict[str, Tensor], batch: Batch) -> None:
        """Compute the gradients of a step, and add its losses to those of the epoch."""
        # Move all values to the host at once: the only point where a step waits for the GPU.
        numbers = torch.stack([value.detach() for value in losses.values()]).tolist()
        values = dict(zip(losses, numbers, strict=True))
        if self.any_process(not math.isfinite(values["loss"])):
            raise self.diverged()
        self.optimizer.zero_grad()
        self.method.backward(losses, _backward(self.fabric, self.method, batch.weight))
        losses.clear()  # and with them a graph that was kept for a second pass
        counted = len(batch.indices) * (batch.weight > 0)
        for name, value in values.items():
            self.sums[name] = self.sums.get(name, 0.0) + value * counted
        self.images_seen += counted

    def end_step(self) -> None:
        """Change the parameters; report progress, that of an epoch's last step after the epoch."""
        self.optimizer.step()
        self.method.after_step(self.done / self.total)
        if self.step + 1 < len(self.rates):
            self.report_progress(
                {name: total / max(self.images_seen, 1) for name, total in self.sums.items()}
            )

    def end_epoch(self, batch: Batch, validate: Callable[[], float] | None) -> dict[str, Any]:
        """Score the epoch if asked to, and save its state; returns what was logged of it."""
        self.method.eval()
        self.require_finite(batch)
        self.method.after_epoch(self.epoch + 1, self.epochs)
        totals = sum_over_processes(self.fabric, list(self.sums.values()), self.device)
        images = sum(self.batches.sizes[: len(self.rates)])
        self.means = {name: total / images for name, total in zip(self.sums, totals, strict=True)}
        entry: dict[str, Any] = {"epoch": self.epoch + 1, **self.means, "lr": self.rates[0]}
        if validate is not None:
            entry["val"] = validate()
            if all(entry["val"] > earlier["val"] for earlier in self.history):
                state = self.method.state_dict()
                self.best = {name: tensor.detach().clone() for name, tensor in state.items()}
        self.history.append(entry | {"seconds": time.perf_counter() - self.started})
        self.save()
        return entry

    def report_progress(self, losses: dict[str, float]) -> None:
        """Report progress after a step."""
        ends_epoch = self.step + 1 == len(self.rates)
        step = TrainingStep(
            self.done, self.total, self.epoch + 1, self.epochs, ends_epoch=ends_epoch, losses=losses
        )
        self.progress(step)

    def require_finite(self, batch: Batch) -> None:
        """Raise TrainingDiverged if an epoch leaves parameters that are not finite, so that no bad state is
        saved. After the last epoch, which no further loss follows, also if the loss of its last batch is no
        longer finite.
        """
        finite = all(torch.isfinite(parameter).all() for parameter in self.method.trainable)
        if self.epoch + 1 == self.epochs:
            with torch.no_grad(), self.autocast():
                last = self.wrapped.loss(*self.inputs(batch))["loss"]
            finite = not self.any_process(not torch.isfinite(last)) and finite
        if not finite:
            raise self.diverged()

    def any_process(self, condition: bool) -> bool:
        """True if it is true in any of the processes."""
        return bool(sum_over_processes(self.fabric, [float(condition)], self.device)[0])

    def diverged(self) -> TrainingDiverged:
        """The error of a training that diverged at the current step."""
        return TrainingDiverged(self.done, ADVICE, self.checkpoint if self.history else None)


def _backward(fabric: Fabric, method: Method, weight: float) -> Callable[[Tensor], None]:
    """The function that adds a loss's gradients to those of the method's parameters. If processes share the
    batch, DDP averages gradients over them, but only in one backward pass per step; for methods with several,
    this function does.
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
