"""How a long computation of several steps reports progress: called with (step, done, of)."""

from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from rich.console import Console

Progress = Callable[[str, int, int], None]


def silent(_step: str, _done: int, _of: int) -> None:
    """Report nothing."""


class Steps:
    """A bar for each step with the time left, on stderr, from its first call to the end of its context;
    called as a `Progress`. Until then stderr is free for the bars of others: those of a download. Nothing is
    shown where stderr is neither a terminal nor a notebook.
    """

    def __init__(self, console: "Console | None" = None) -> None:
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
