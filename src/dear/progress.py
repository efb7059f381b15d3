"""How a long computation reports progress: called with (step, done, of), a training with a `TrainingStep`."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from rich.console import Console

Progress = Callable[[str, int, int], None]


def silent(*_: object) -> None:
    """Report nothing."""


@dataclass(frozen=True)
class TrainingStep:
    """Where a training stands: before its first step, and after each.

    Attributes:
        done, of: Steps taken, including those before an interruption, and total steps.
        epoch, epochs: The epoch of the last step, counted from 1, and how many there are.
        method: Name of the method that is trained: that of a run, or its teacher.
        losses: The loss as "loss" and its parts by name: means over the images of the epoch so far; empty
            before the first step.
        record: What is recorded of the epoch that this step ended, whose state has then been saved; empty
            within an epoch.
    """

    done: int
    of: int
    epoch: int
    epochs: int
    method: str = ""
    losses: Mapping[str, float] = field(default_factory=dict)
    record: Mapping[str, float] = field(default_factory=dict)

    @property
    def ends_epoch(self) -> bool:
        """True for the last step of an epoch."""
        return bool(self.record)

    def __str__(self) -> str:
        loss = f", loss {self.losses['loss']:.3g}" if self.losses else ""
        return f"epoch {self.epoch}/{self.epochs}{loss}"


SPEED_PERIOD = 3600.0
"""Seconds from which the time left is estimated: slow steps may be minutes apart."""
OnStep = Callable[[TrainingStep], None]
OnRunStep = Callable[[str, TrainingStep | None], None]
"""Called with the name of a run after each step of its training, and with None at its end."""


class Steps:
    """A bar for each step with the time left, on stderr, from its first call to the end of its context;
    called as a `Progress`. Until then stderr is free for the bars of others: those of a download. Nothing is
    shown where stderr is neither a terminal nor a notebook.
    """

    def __init__(self, console: "Console | None" = None, clock: Callable[[], float] | None = None) -> None:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            TextColumn,
            TimeElapsedColumn,
            TimeRemainingColumn,
        )
        from rich.progress import Progress as Bars

        self.console = console or Console(stderr=True, highlight=False)
        self.bars = Bars(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=self.console,
            speed_estimate_period=SPEED_PERIOD,
            get_time=clock,
            disable=not (self.console.is_terminal or self.console.is_jupyter),
        )
        self.tasks = dict[str, Any]()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.bars.stop()

    def __call__(self, step: str, done: int, of: int) -> None:
        self.bars.start()
        if step not in self.tasks:
            self.tasks[step] = self.bars.add_task(step, total=of)
        self.bars.update(self.tasks[step], completed=done, total=of)
