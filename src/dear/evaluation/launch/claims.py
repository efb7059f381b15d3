"""The output folders of experiments: each has one owner and is written by one process at a time."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from dear.errors import OutputError
from dear.evaluation.experiment import Experiment
from dear.evaluation.records import make_folder
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
    """Raise OutputError if `launch` would refuse an experiment's folder; creates nothing."""
    require_distinct_folders(experiments)
    for experiment in experiments:
        out = experiment.out.absolute()
        existing = next(path for path in (out, *out.parents) if path.exists())
        if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
            why = "no permission" if existing.is_dir() else f"{existing} is not a folder"
            raise OutputError(f"cannot write to {out}: {why}. Choose another place with --out.")
        _require_owner(out, experiment.recipe)


def _require_owner(out: Path, recipe: str) -> None:
    """Raise OutputError if a folder's mark names another recipe."""
    mark = out / MARK
    if recipe and mark.exists() and (owner := mark.read_text(errors="replace").strip()) not in ("", recipe):
        raise OutputError(
            f"{out} holds the runs of the recipe {shown(owner)}, not of {recipe}: choose another place with "
            "--out."
        )


@contextmanager
def claimed(experiment: Experiment) -> Iterator[None]:
    """Lock the folder of an experiment. Raises OutputError if it belongs to another recipe or is in use."""
    out, recipe = experiment.out, experiment.recipe
    make_folder(out)
    lock = FileLock(out / LOCK, timeout=0)  # released by the system if the process is killed
    try:
        lock.acquire()
    except Timeout as error:
        raise OutputError(
            f"another process is writing to {out}: wait for it, or choose another place with --out."
        ) from error
    except OSError as error:
        raise OutputError(f"cannot write to {out}: {error}; choose another place with --out.") from error
    try:
        _require_owner(out, recipe)
        if recipe:
            with output_file(out / MARK) as mark:
                mark.write(f"{recipe}\n".encode())
        yield
    finally:
        with suppress(OSError):
            (out / LOCK).unlink()  # still held: one who opened it before sees that it is gone
        lock.release()
