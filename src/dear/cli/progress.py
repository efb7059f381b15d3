"""Progress of many runs, or of the steps of one computation, on stderr: bars with the time left on a
terminal, otherwise a line for each finished one and at least every half minute.
"""

import time
from collections.abc import Callable
from datetime import timedelta
from typing import Self

from rich.progress import TaskID

from dear.cli.output import progress_console
from dear.progress import Steps, TrainingStep
from dear.text import printable

EVERY = 30.0
"""Seconds between lines where stderr is no terminal."""


class StepProgress(Steps):
    """Called with (step, done, of) whenever something is done."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(progress_console(), clock)
        self.clock, self.last = clock, clock()

    def __call__(self, step: str, done: int, of: int) -> None:
        super().__call__(step, done, of)
        self.print(f"{step}: {done} of {of}", None if done == of else self.tasks[step])

    def print(self, text: str, unfinished: TaskID | None = None) -> None:
        """Print a line where stderr is no terminal; of an unfinished task with the time left, and only if the
        last line is long ago.
        """
        if self.console.is_terminal or (unfinished is not None and self.clock() - self.last < EVERY):
            return
        left = None if unfinished is None else self.bars.tasks[unfinished].time_remaining
        self.note(text if left is None else f"{text}, {timedelta(seconds=round(left))} left")

    def note(self, text: str) -> None:
        """Print a line of its own."""
        if text:
            self.last = self.clock()
            self.console.print(printable(text), markup=False, soft_wrap=True)


class RunBars:
    """One bar for all runs while its context is active. Called with (run, step) after each step of a run's
    training and with (run, None) at the end of each run.
    """

    def __init__(self, runs: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.steps, self.runs, self.done = StepProgress(clock), runs, 0
        self.task = self.steps.bars.add_task("starting", total=runs)
        self.parts = dict[str, float]()  # of the runs under way, the share that is done

    def __enter__(self) -> Self:
        self.steps.bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.steps.bars.stop()

    def __call__(self, run: str, step: TrainingStep | None) -> None:
        self.done += step is None
        self.parts[run] = 0 if step is None else step.done / step.of
        text = run if step is None else f"{run} {step}"
        self.steps.bars.update(self.task, description=text, completed=self.done + sum(self.parts.values()))
        self.steps.print(f"[{self.done}/{self.runs}] {text}", None if step is None else self.task)
