"""A command with options of every sort, and a Python of its own for a command line."""

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

ROOT = Path(__file__).parents[3]
SOURCE = ROOT / "src"


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
) -> dict[str, object]:
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
    return {
        "data": data,
        "tasks": tasks,
        "shots": shots,
        "mask": mask,
        "epochs": training.epochs,
        "flags": [dry_run, keep_all],
    }


def python(*words: str, code: str = "") -> subprocess.CompletedProcess[str]:
    start = ["-c", code] if code else ["-m", "dear.cli.main"]
    return subprocess.run(
        [sys.executable, *start, *words],
        capture_output=True,
        text=True,
        timeout=120,
        env={"PYTHONPATH": str(SOURCE)},
        check=False,
    )
