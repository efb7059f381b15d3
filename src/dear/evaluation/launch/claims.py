"""The output folders of experiments: each has one owner and is written by one process at a time."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TextIO

from dear.errors import OutputError
from dear.evaluation.experiment import Experiment
from dear.evaluation.records import make_folder
from dear.limits import LimitError
from dear.reading.files import ReadingError, read_text
from dear.reading.typed import shown
from dear.writing import output_file

MARK, LOCK = ".recipe", ".dear.lock"


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
        if recipe:
            _require_owner(out, recipe)


def _require_owner(out: Path, recipe: str) -> bool:
    """True if a folder's mark names a recipe, False without a mark or an owner in it. Raises OutputError for
    another recipe, or a mark that is no plain text.
    """
    try:
        owner = read_text(out / MARK).strip()
    except (ReadingError, LimitError) as error:
        if isinstance(error, ReadingError) and error.missing:
            return False
        raise OutputError(f"{error} Choose another place with --out.") from error
    if owner not in ("", recipe):
        raise OutputError(
            f"{out} holds the runs of the recipe {shown(owner)}, not of {recipe}: choose another place with "
            "--out."
        )
    return bool(owner)


@contextmanager
def claimed(experiment: Experiment) -> Iterator[None]:
    """Lock the folder of an experiment. Raises OutputError if it belongs to another recipe or is in use."""
    out, recipe = experiment.out, experiment.recipe
    make_folder(out)
    lock: TextIO | None = None
    try:
        lock = _lock(out)
        if not _held(lock.fileno(), out):
            raise OutputError(
                f"another process is writing to {out}: wait for it, or choose another place with --out."
            )
        if recipe and not _require_owner(out, recipe):
            with output_file(out / MARK) as mark:
                mark.write(f"{recipe}\n".encode())
        yield
        lock.close()
        _remove_lock(out)
    except BaseException:  # also a signal during the removal
        if lock:
            lock.close()
        _remove_lock(out)
        raise


def _remove_lock(out: Path) -> None:
    """Remove a lock that no process has, of this one too if a signal came before it was held. One with a
    content is not ours, which are empty.
    """
    with suppress(OSError), (out / LOCK).open("rb") as lock:
        if _held(lock.fileno(), out) and not os.fstat(lock.fileno()).st_size:
            (out / LOCK).unlink(missing_ok=True)


def _lock(out: Path) -> TextIO:
    try:
        return (out / LOCK).open("a")
    except OSError as error:
        raise OutputError(f"cannot write to {out}: {error}; choose another place with --out.") from error


def _held(file: int, out: Path) -> bool:
    """Whether this process has the lock of the folder, which it takes if it is free."""
    try:
        import fcntl
    except ModuleNotFoundError:  # Windows has no such locks
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # released by the system if the process is killed
        return os.path.samestat(os.stat(out / LOCK), os.fstat(file))  # or its last holder just removed it
    except OSError:
        return False
