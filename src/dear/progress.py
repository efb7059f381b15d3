"""The one type of progress of a computation of several steps: called with (step, done, of)."""

from collections.abc import Callable

Progress = Callable[[str, int, int], None]


def silent(_step: str, _done: int, _of: int) -> None:
    """Report nothing."""
