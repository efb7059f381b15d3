"""The output folders of experiments: each has one owner and is written by one process at a time."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from dear.errors import OutputError
from dear.evaluation.experiment import Experiment
from dear.evaluation.records import make_folder
from dear.writing import atomic_write

MARK, LOCK = ".recipe", ".lock"


def require_distinct_folders(experiments: Sequence[Experiment]) -> None:
    """Raise OutputError if two experiments write to the same folder."""
    owners: dict[Path, Experiment] = {}
    for experiment in experiments:
        owner = owners.setdefault(experiment.out.resolve(), experiment)
        if owner is not experiment:
            names = [writer.recipe or writer.protocol.name for writer in (owner, experiment)]
            raise OutputError(f"{' and '.join(names)} both write to {experiment.out}: give each its own out.")


def check_folders(experiments: Sequence[Experiment]) -> None:
    """Raise OutputError if `execute` would refuse an experiment's folder; creates nothing."""
    require_distinct_folders(experiments)
    for out, recipe in [(experiment.out.absolute(), experiment.recipe) for experiment in experiments]:
        existing = next(path for path in (out, *out.parents) if path.exists())
        if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
            why = "no permission" if existing.is_dir() else f"{existing} is not a folder"
            raise OutputError(f"cannot write to {out}: {why}. Choose another place with --out.")
        if recipe and (out / MARK).is_file():
            _require_owner(out, recipe, (out / MARK).read_text(encoding="utf-8", errors="replace").strip())


def _require_owner(out: Path, recipe: str, owner: str) -> None:
    if owner not in ("", recipe):
        raise OutputError(
            f"{out} holds the runs of the recipe {owner}, not of {recipe}: choose another place with --out."
        )


@contextmanager
def claimed(experiment: Experiment) -> Iterator[None]:
    """Lock the folder of an experiment. Raises OutputError if it belongs to another recipe or is in use."""
    out, recipe = experiment.out, experiment.recipe
    make_folder(out)
    with _lock(out) as lock:
        _hold(lock.fileno(), out)
        try:
            if recipe:
                _mark(out, recipe)
            yield
        finally:
            (out / LOCK).unlink(missing_ok=True)


def _lock(out: Path) -> TextIO:
    try:
        return (out / LOCK).open("a")
    except OSError as error:
        raise OutputError(f"cannot write to {out}: {error}. Choose another place with --out.") from error


def _mark(out: Path, recipe: str) -> None:
    """Write whose runs a folder holds, unless that is already recorded; an empty mark has no owner."""
    mark = out / MARK
    try:
        owner = mark.read_text(encoding="utf-8", errors="replace").strip() if mark.exists() else ""
        if not owner:
            with atomic_write(mark) as file:
                file.write(f"{recipe}\n".encode())
    except OSError as error:
        raise OutputError(f"cannot write {mark}: {error}. Choose another place with --out.") from error
    _require_owner(out, recipe, owner)


def _hold(file: int, out: Path) -> None:
    try:
        import fcntl
    except ModuleNotFoundError:  # Windows has no such locks
        return
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # released by the system if the process is killed
        if not os.path.samestat(os.stat(out / LOCK), os.fstat(file)):  # the previous holder just removed it
            raise OSError("the lock is another file")
    except OSError as error:
        raise OutputError(
            f"another process is writing to {out}: wait for it, or choose another place with --out."
        ) from error
