"""Progress of many runs, or of the steps of one computation, on stderr: bars with the time left on a
terminal, otherwise a line for each finished one and at least every half minute.
"""

import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from dear.cli.output import progress_console
from dear.errors import printable
from dear.progress import SPEED_PERIOD, Steps, TrainingStep

EVERY = 30.0
"""Seconds between lines where stderr is no terminal."""


class Lines:
    """Lines on a console that is no terminal, at least `EVERY` seconds apart."""

    def __init__(self, console: Console, clock: Callable[[], float] = time.monotonic) -> None:
        self.console, self.clock = console, clock
        self.last = clock()

    def print(self, text: str) -> None:
        """Print a line now."""
        self.last = self.clock()
        self.console.print(printable(text), markup=False, soft_wrap=True)

    def update(self, text: str, left: float | None) -> None:
        """Print a line with the seconds left if the last one is long ago."""
        if not self.console.is_terminal and self.clock() - self.last >= EVERY:
            self.print(text + (f", {time_text(left)} left" if left is not None else ""))


class RunProgress:
    """A bar on stderr while its context is active, lines if stderr is no terminal. Called with (run, step)
    after each step of a run's training and with (run, None) at the end of each run.
    """

    def __init__(self, runs: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.console = progress_console()
        self.lines = Lines(self.console, clock)
        self.bar = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TextColumn("{task.fields[done]}/{task.total}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=self.console,
            speed_estimate_period=SPEED_PERIOD,
            get_time=clock,
            disable=not self.console.is_terminal,
        )
        self.done, self.runs = 0, runs
        self.parts = dict[str, float]()  # of the runs under way, the share that is done
        self.task = self.bar.add_task("starting", total=runs, done=0)

    def __enter__(self) -> Self:
        self.bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.bar.stop()

    def __call__(self, run: str, step: TrainingStep | None) -> None:
        if step is None:
            self.parts.pop(run, None)
            self.done += 1
        else:
            self.parts[run] = step.done / step.of
        completed = self.done + sum(self.parts.values())
        description = run if step is None else f"{run} {step}"
        self.bar.update(self.task, description=description, completed=completed, done=self.done)
        if step is not None:
            left = self.bar.tasks[0].time_remaining
            self.lines.update(f"[{self.done}/{self.runs}] {description}", left)
        elif not self.console.is_terminal:
            self.lines.print(f"[{self.done}/{self.runs}] {run}")


class StepProgress(Steps):
    """Called with (step, done, of) whenever something is done; a line for each finished step, and in between
    at least every half minute, if stderr is not a terminal.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(progress_console(), clock)
        self.lines = Lines(self.console, clock)

    def __call__(self, step: str, done: int, of: int) -> None:
        super().__call__(step, done, of)
        if done == of and not self.console.is_terminal:
            self.lines.print(f"{step}: {done} of {of}")
        elif done < of:
            self.lines.update(f"{step}: {done} of {of}", self.bars.tasks[self.tasks[step]].time_remaining)

    def note(self, text: str) -> None:
        """Print a line of its own."""
        if text:
            self.lines.print(text)


def time_text(seconds: float) -> str:
    """A duration in its largest unit, such as "4 min"."""
    for unit, length in (("h", 3600), ("min", 60)):
        if seconds >= 1.5 * length:
            return f"{round(seconds / length)} {unit}"
    return f"{max(1, round(seconds))} s"
