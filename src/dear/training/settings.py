"""Settings of training. Light to import, so that commands can show them without loading torch."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from dear.backbone.names import Precision
from dear.errors import SettingsError
from dear.reading.typed import (
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    Range,
    check_fields,
    check_overrides,
)
from dear.text import plural

Optimizer = Literal["adamw", "sgd", "adam"]
Schedule = Literal["epoch", "step"]
FEW_STEPS = 3
"""A training with fewer steps than this after the warm-up counts as short."""


@dataclass(frozen=True)
class TrainSettings:
    """Settings of the loop; the defaults are those of the paper where it says one, the same for all data sets
    (docs/concepts.md, "Our choices").

    Attributes:
        epochs: Passes over the training images, including the warm-up.
        steps_per_shot: Number of training steps for each shot, in place of epochs: with 500, a training with
            16 shots has 8,000 steps. 0 trains by epochs.
        batch: Images per step.
        lr: Learning rate after the warm-up.
        warmup_epochs: Number of first epochs that train at the constant rate warmup_lr.
        warmup_lr: Learning rate of the warm-up.
        schedule: Whether the learning rate, which falls by a cosine after the warm-up, changes with each
            epoch or with each step.
        lr_end: Learning rate at the end of the cosine.
        weight_decay: Weight decay. The paper states none; the default is the weight decay of CoOp's code.
        precision: Number format. "auto" is bf16-mixed on a GPU. On a CPU it is bf16-mixed if the CPU is fast
            in bfloat16 and the image tower at least 384 wide, else 32-true. Records say which. "16-true" has
            weights and trained parameters in float16, as the code of CoOp, CoCoOp, MaPLe, PromptSRC and VPT.
            It needs "sgd".
        optimizer: "adamw", "sgd" with momentum, or "adam", whose weight decay is part of the gradient.
        momentum: Momentum of SGD.
        crop: Smallest share of an image's area in a random view; 0.08 in the code of CoOp, CoCoOp, MaPLe,
            PromptSRC and VPT.
        drop_last: Drop the last batch of an epoch if it is not full, as Dassl does. If it is the only batch
            of the epoch, it is kept.
        view_seed: Seed of the random views, in place of the run's seed. Runs with different seeds then see
            the same views.
        text_chunk: Prompts that go through the text span at a time. Their activations are computed again for
            the gradients, which saves memory, costs time and does not change the loss. 0 means all at once.
    """

    epochs: PositiveInt = 10
    steps_per_shot: NonNegativeInt = 0
    batch: PositiveInt = 16
    lr: PositiveFloat = 1e-3
    warmup_epochs: NonNegativeInt = 1
    warmup_lr: PositiveFloat = 1e-5
    schedule: Schedule = "epoch"
    lr_end: NonNegativeFloat = 0.0
    weight_decay: NonNegativeFloat = 5e-4
    precision: Precision = "auto"
    optimizer: Optimizer = "adamw"
    momentum: Annotated[float, Range(0, 1, below=True)] = 0.9
    crop: Annotated[float, Range(0, 1, above=True)] = 0.5
    drop_last: bool = False
    view_seed: int | None = None
    text_chunk: NonNegativeInt = 0

    def __post_init__(self) -> None:
        check_fields(self)
        if self.lr_end > self.lr:
            raise SettingsError(f"lr_end is {self.lr_end}: it must be at most lr, which is {self.lr}.")

    def fingerprint_fields(self) -> dict[str, Any]:
        """The fields that change results: all but ``text_chunk``, which only saves memory."""
        return {name: value for name, value in vars(self).items() if name != "text_chunk"}

    def epoch_steps(self, images: int) -> int:
        """Number of steps in an epoch of this many images."""
        full, remainder = divmod(images, self.batch)
        return full + (remainder > 0 and not (self.drop_last and full))

    def total_steps(self, images: int, classes: int, epoch_steps: int) -> int:
        """Number of steps of a training. Shots are the mean number of images of a class. Raises SettingsError
        if the warm-up takes all steps.
        """
        if not self.steps_per_shot:
            return self.epochs * epoch_steps
        steps = max(1, round(self.steps_per_shot * images / classes))
        if self.warmup_epochs * epoch_steps >= steps:
            raise SettingsError(
                f"warmup_epochs is {self.warmup_epochs}, of {epoch_steps} steps each, and there are {steps}: "
                "all would train at the warm-up rate. Give fewer --train.warmup-epochs."
            )
        return steps

    def note_on_length(self, total_steps: int, epoch_steps: int) -> str:
        """A warning if a training has too few steps to learn much: fewer than `FEW_STEPS` after the warm-up,
        or no more than in it; else "".
        """
        warmup_steps = min(self.warmup_epochs * epoch_steps, total_steps)
        if total_steps - warmup_steps >= FEW_STEPS and total_steps > 2 * warmup_steps:
            return ""
        warmup, remedy = "", ""
        if warmup_steps:
            warmup = f", {warmup_steps} of them at the warm-up rate of {self.warmup_lr:g}"
            remedy = ", or --train.warmup-epochs 0"
        return (
            f"a training of {plural(total_steps, 'step')}{warmup}: it may hardly change the method. Give "
            f"more --train.epochs{remedy}."
        )

    def lr_at(self, epoch: float, epochs: float | None = None) -> float:
        """Learning rate of an epoch, counted from 0: constant during warm-up, then a cosine that would reach
        ``lr_end`` after ``epochs`` more (those of the settings if None). Steps are parts of an epoch.

        Source: Dassl's ConstantWarmupScheduler over CosineAnnealingLR(T_max=epochs), which the CoOp
        family of methods uses.
        """
        if epoch < self.warmup_epochs:
            return self.warmup_lr
        angle = math.pi * (epoch - self.warmup_epochs) / (self.epochs if epochs is None else epochs)
        return self.lr_end + (self.lr - self.lr_end) * 0.5 * (1 + math.cos(angle))


def used_training(settings: Mapping[str, Any], *, steps: bool, images: bool) -> dict[str, Any]:
    """Those of some settings of training that change something: where no ``steps`` are taken, only those of
    numbers and, if training ``images`` are seen, of views.
    """
    used = {"precision", "text_chunk"} | ({"crop", "view_seed"} if images else set())
    return {name: value for name, value in settings.items() if steps or name in used}


def check_training(train: Mapping[str, Any], what: str = "the settings of training") -> dict[str, Any]:
    """What a user sets of the training settings, checked. Raises SettingsError, in the name of ``what``."""
    return check_overrides(train, TrainSettings, what)


def resolve_training(published: Mapping[str, Any], train: Mapping[str, Any]) -> TrainSettings:
    """The defaults, under the ``published`` training settings of a method, under what the user sets. Epochs
    that are set without steps_per_shot replace a published number of steps. Raises SettingsError, also if the
    warm-up takes all epochs.
    """
    train = check_training(train)
    if "epochs" in train:
        train = {"steps_per_shot": 0} | train
    settings = TrainSettings(**{**published, **train})
    if not settings.steps_per_shot and settings.warmup_epochs >= settings.epochs:
        raise SettingsError(
            f"warmup_epochs is {settings.warmup_epochs} of {settings.epochs} epochs: all would train at the "
            "warm-up rate. Give more --train.epochs or fewer --train.warmup-epochs."
        )
    return settings
