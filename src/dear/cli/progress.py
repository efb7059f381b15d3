"""Progress of many runs, on stderr: a bar on a terminal, otherwise one line per finished run."""

from types import TracebackType
from typing import Self

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from dear.cli.output import progress_console
from dear.progress import Steps


class RunProgress:
    """A bar on stderr while its context is active, hidden if stderr is no terminal. Called with (run, epoch,
    losses) after each epoch and at the end of each run, which has no losses.

    ``epochs`` is None where methods train for different numbers of them.
    """

    def __init__(self, runs: int, epochs: int | None) -> None:
        self.console = progress_console()
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
        )
        self.bar = Progress(*columns, console=self.console, disable=not self.console.is_terminal)
        self.epochs, self.done, self.runs = epochs, 0, runs
        self.task = self.bar.add_task("starting", total=runs)

    def __enter__(self) -> Self:
        self.bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.bar.stop()

    def __call__(self, run: str, epoch: int, parts: dict[str, float]) -> None:
        if parts:
            of = f"/{self.epochs}" if self.epochs else ""
            self.bar.update(self.task, description=f"{run} epoch {epoch}{of} loss {parts['loss']:.3f}")
            return
        self.done += 1
        self.bar.update(self.task, description=run, completed=self.done)
        if not self.console.is_terminal:
            self.console.print(f"[{self.done}/{self.runs}] {run}", markup=False)


class StepProgress(Steps):
    """Called with (step, done, of) whenever something is done; a line for each finished step if stderr is not
    a terminal.
    """

    def __init__(self) -> None:
        super().__init__(progress_console())

    def __call__(self, step: str, done: int, of: int) -> None:
        super().__call__(step, done, of)
        if done == of and not self.console.is_terminal:
            self.console.print(f"{step}: {done} of {of}")

    def note(self, text: str) -> None:
        """Print a line of its own."""
        if text:
            self.console.print(text, markup=False, soft_wrap=True)
