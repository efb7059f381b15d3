"""Progress of one command's steps, on stderr: a bar on a terminal, a line a finished step elsewhere."""

from types import TracebackType
from typing import Self

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from dear.cli.output import progress_console


class StepProgress:
    """Called with (step, done, of) whenever something is done."""

    def __init__(self) -> None:
        self.console = progress_console()
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        self.bar = Progress(*columns, console=self.console, disable=not self.console.is_terminal)
        self.tasks = dict[str, TaskID]()

    def __enter__(self) -> Self:
        self.bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.bar.stop()

    def __call__(self, step: str, done: int, of: int) -> None:
        if step not in self.tasks:
            self.tasks[step] = self.bar.add_task(step, total=of)
        self.bar.update(self.tasks[step], completed=done, total=of)
        if done == of and not self.console.is_terminal:
            self.console.print(f"{step}: {done} of {of}")

    def note(self, text: str) -> None:
        """A line of its own."""
        if text:
            self.console.print(text, markup=False, soft_wrap=True)
