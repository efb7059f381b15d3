"""The training loop: few-shot images in random views, a constant warm-up, then a cosine schedule
(`TrainSettings.lr_at`).
"""

import json
import math
import time
from collections.abc import Callable
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
    start_over: bool = False,
    fabric: Fabric | None = None,
    validate: Callable[[], float] | None = None,
    label: str = "run",
    progress: OnStep = unreported,
) -> list[dict[str, Any]]:
    """Train a method on images of its current classes. Returns the mean loss, its parts and the learning rate
    for each epoch; an empty list for a method that takes no steps.

    ``cache`` keeps trunk outputs in memory for runs with the same batches; ``views`` (by default what the
    settings ask for) keeps them on disk for all runs with the same views, which requires a view seed. With
    ``checkpoint`` the state is saved there after each epoch, and an interrupted run resumes from it: with
    identical results on a CPU; on a GPU up to rounding, like any two runs, because gradients of gathered
    tokens are added there in no fixed order. With ``start_over`` a damaged checkpoint is set aside, and the
    training starts over. With ``validate`` each epoch records its score as "val" and the
    method ends in the state of the best epoch (the first of equals); otherwise in that of the last. A
    ``fabric`` of several processes splits each batch among them: the results equal those of one process up to
    rounding, except for methods whose loss depends on which images share a batch, or that drop values at
    random. ``label`` names the run in Fabric's loggers, ``progress`` is called after each step.
    A training with too few steps to learn much gets a warning.

    Raises SettingsError for ``views`` without a view seed and for weights in float16 with another precision
    than 16-true or the reverse, CheckpointError for a damaged checkpoint, and
    TrainingDiverged at the first loss that is not finite, or at the end of an epoch that leaves parameters
    not finite (after the last epoch also if the loss is no longer finite).
    """
    views = views or view_cache(settings)
    if views is not None and settings.view_seed is None:
        raise SettingsError("a view cache requires views shared between runs: give --train.view-seed.")
    cache = cache or TrunkCache(0)
    settings = _with_precision(method, settings)
    method.text_chunk = settings.text_chunk
    _prepare(method, training_images(method, images, settings, seed, cache))
    if not method.takes_steps:
        return []
    fabric = fabric or make_fabric(method.clip.image.projection.device, settings.precision)
    batches = Batches(method, images, settings, seed, fabric, cache, views)
    loop = _Loop(method, images, settings, seed, fabric, batches, checkpoint, progress)
    loop.resume("val" if validate else "last", start_over=start_over)
    for epoch in range(len(loop.history), loop.epochs):
        start = time.perf_counter()
        entry = loop.train_epoch(epoch)
        if validate is not None:
            loop.validate(entry, validate)
        loop.history.append(entry | {"seconds": time.perf_counter() - start})
        loop.save()
        fabric.log_dict({f"{label}/{name}": value for name, value in entry.items()}, step=epoch + 1)
        loop.report_progress(epoch, len(loop.rates(epoch)), loop.means, ends_epoch=True)
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
        self.means: dict[str, float] = {}
        if note := settings.note_on_length(self.total, batches.epoch_steps):
            warn(note)

    def resume(self, select: str, *, start_over: bool) -> None:
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
            try:
                self.load(self.checkpoint)
            except CheckpointError:
                if not start_over:
                    raise
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
            self.method.load_state_dict(state["method"])
            self.optimizer.load_state_dict(state["optimizer"])
            self.fabric.strategy.precision.load_state_dict(state["scaling"])
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

    def rates(self, epoch: int) -> list[float]:
        """The learning rate of each step of an epoch, counted from 0: the last epoch may have fewer."""
        steps, by_step = self.batches.epoch_steps, self.settings.schedule == "step"
        parts = [step / steps if by_step else 0.0 for step in range(min(steps, self.total - epoch * steps))]
        return [self.settings.lr_at(epoch + part, self.total / steps) for part in parts]

    def report_progress(
        self, epoch: int, steps: int, losses: dict[str, float], *, ends_epoch: bool = False
    ) -> None:
        """Report progress after ``steps`` steps of an epoch."""
        done = epoch * self.batches.epoch_steps + steps
        step = TrainingStep(done, self.total, epoch + 1, self.epochs, ends_epoch=ends_epoch, losses=losses)
        self.progress(step)

    def train_epoch(self, epoch: int) -> dict[str, Any]:
        """Take the steps of an epoch; returns its record."""
        rates = self.rates(epoch)
        sums: dict[str, float] = {}
        images_seen = 0.0
        self.method.train()
        for step, (rate, batch) in enumerate(
            zip(rates, self.batches.load_epoch(epoch, len(rates)), strict=True)
        ):
            values = self.take_step(epoch, step, rate, batch)
            counted = len(batch.indices) * (batch.weight > 0)
            for name, value in values.items():
                sums[name] = sums.get(name, 0.0) + value * counted
            images_seen += counted
            if step + 1 < len(rates):
                self.report_progress(
                    epoch, step + 1, {name: total / max(images_seen, 1) for name, total in sums.items()}
                )
        self.method.eval()
        self.require_finite(epoch, batch)
        self.method.after_epoch(epoch + 1, self.epochs)
        totals = sum_over_processes(self.fabric, list(sums.values()), self.device)
        images = sum(self.batches.sizes[: len(rates)])
        self.means = {name: total / images for name, total in zip(sums, totals, strict=True)}
        return {"epoch": epoch + 1, **self.means, "lr": rates[0]}

    def loss(self, batch: Batch) -> dict[str, Tensor]:
        """The loss of a batch and its parts."""
        frozen = () if batch.frozen is None else (batch.frozen,)
        labels = self.images.labels[batch.indices].repeat(self.method.views_per_image).to(self.device)
        with mixed(self.device, self.settings.precision):  # Fabric applies it only to DDP's forward
            parts: dict[str, Tensor] = self.wrapped.loss(batch.trunk, labels, *frozen)
        return parts

    def take_step(self, epoch: int, step: int, rate: float, batch: Batch) -> dict[str, float]:
        """Take a step; returns the loss and its parts."""
        method, done = self.method, epoch * self.batches.epoch_steps + step + 1
        for group in self.optimizer.param_groups:
            group["lr"] = rate * group["rate"]
        method.before_step(generator(self.seed, "step", epoch, step))
        skips_sync = method.several_backwards and self.fabric.world_size > 1
        with self.fabric.no_backward_sync(self.wrapped, enabled=skips_sync):
            parts = self.loss(batch)
            # Move all values to the host at once: the only point where a step waits for the GPU.
            numbers = torch.stack([value.detach() for value in parts.values()]).tolist()
            values = dict(zip(parts, numbers, strict=True))
            if self.any_process(not math.isfinite(values["loss"])):
                raise self.diverged(done)
            self.optimizer.zero_grad()
            method.backward(parts, _backward(self.fabric, method, batch.weight))
            del parts  # and with it a graph that was kept for a second pass
        self.optimizer.step()
        method.after_step(done / self.total)
        return values

    def require_finite(self, epoch: int, batch: Batch) -> None:
        """Raise TrainingDiverged if an epoch leaves parameters that are not finite, so that no bad state is
        saved. After the last epoch, which no further loss follows, also if the loss of its last batch is no
        longer finite.
        """
        finite = all(torch.isfinite(parameter).all() for parameter in self.method.trainable)
        if epoch + 1 == self.epochs:
            with torch.no_grad():
                last = self.loss(batch)["loss"]
            finite = not self.any_process(not torch.isfinite(last)) and finite
        if not finite:
            raise self.diverged(epoch * self.batches.epoch_steps + len(self.rates(epoch)))

    def any_process(self, condition: bool) -> bool:
        """True if it is true in any of the processes."""
        return bool(sum_over_processes(self.fabric, [float(condition)], self.device)[0])

    def diverged(self, step: int) -> TrainingDiverged:
        """The error of a training that diverged at a step, counted from 1."""
        return TrainingDiverged(step, ADVICE, self.checkpoint if self.history else None)

    def validate(self, entry: dict[str, Any], score: Callable[[], float]) -> None:
        """Score an epoch, and keep the method's state if it is better than all earlier ones."""
        entry["val"] = score()
        if all(entry["val"] > earlier["val"] for earlier in self.history):
            self.best = {name: tensor.detach().clone() for name, tensor in self.method.state_dict().items()}


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
