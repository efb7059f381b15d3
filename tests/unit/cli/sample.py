"""A command with options of every sort, and the options that a command line gives."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from dear.cli.main import load_app


def parse(*words: str) -> dict[str, Any]:
    """The arguments that a command line of `dear` gives to its command."""
    _, bound, _ = load_app(words).parse_args(words, print_error=False, exit_on_error=False)
    bound.apply_defaults()
    return dict(bound.arguments)


@dataclass(frozen=True)
class Training:
    """How to train.

    Args:
        epochs: Passes over the shots.
        rate: How fast, if not as usual.
        stages: Names of stages.
        sizes: Sizes of stages.
    """

    epochs: int = 7
    rate: float | None = None
    stages: tuple[str, ...] = ()
    sizes: tuple[int, ...] = (3,)


def sample(
    data: Path,
    *,
    tasks: list[str] | None = None,
    shots: int | None = None,
    mask: Literal["roles", "mixed"] = "roles",
    dry_run: bool = False,
    keep_all: bool = True,
    training: Training = Training(),
) -> None:
    """Do something.

    Args:
        data: Where the data is.
        tasks: Names of tasks.
        shots: Images a class.
        mask: Which heads are isolated.
        dry_run: Change nothing.
        keep_all: Keep every file.
        training: How to train.
    """
