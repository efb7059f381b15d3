"""Make the runs of experiments: one after the other, on several processes or GPUs, or on a Ray cluster; or
list them in a dry run.
"""

import os
import warnings
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from dear.backbone.device import find_device
from dear.backbone.precision import device_precision
from dear.data.loading import held_notes
from dear.errors import DearError, OutputError
from dear.evaluation.experiment import Experiment, Machines, Run
from dear.evaluation.log import log_epochs
from dear.evaluation.records import make_folder
from dear.evaluation.runs import Runner, RunProgress, run_one, silent
from dear.evaluation.workers import make_runs, open_cluster, open_processes
from dear.reading.typed import shown
from dear.writing import output_file

MARK, LOCK = ".recipe", ".dear.lock"
"""Files in a folder of records: the recipe whose runs they are, and the lock of the process that writes."""


def launch(
    experiments: Sequence[Experiment], machines: Machines | None = None, progress: RunProgress = silent
) -> list[list[dict[str, Any]]]:
    """Make all runs of some experiments; returns their records, grouped by experiment.

    Everything that can be checked is checked before the first run. Sequential runs compute what experiments
    share only once. Raises DearError; the records of finished runs are kept.
    """
    machines = machines or Machines()
    check_folders(experiments)
    check_device(machines, experiments)
    uses_workers = machines.jobs > 1 or machines.cluster is not None
    runner = Runner("cpu" if uses_workers else machines.device)
    tasks = [(experiment, run) for experiment in experiments for run in experiment.runs()]
    with ExitStack() as stack:
        if machines.log is not None:
            progress = stack.enter_context(log_epochs(machines.log, progress))
        with held_notes() as notes:
            for experiment in experiments:
                if (error := runner.check(experiment)) is not None:
                    raise error
        for experiment in experiments:
            stack.enter_context(lock_folder(experiment))
        if uses_workers:
            records = _make_on_workers(tasks, runner, machines, progress, notes)
        else:
            records = []
            for experiment, run in tasks:
                context, resolved = runner.prepare(experiment, run)
                records.append(run_one(context, resolved, out=experiment.out, progress=progress))
    in_order = iter(records)
    return [[next(in_order) for _ in experiment.runs()] for experiment in experiments]


def list_runs(
    experiments: Sequence[Experiment], machines: Machines
) -> tuple[list[dict[str, Any]], str | None]:
    """Each run of the experiments, with "done" if it has a record; if some cannot begin yet, because data or
    weights are missing, also the reason. Creates nothing. Raises DearError for any other error that would
    stop them.
    """
    check_folders(experiments)
    check_device(machines, experiments)
    runner, runs = Runner(machines.device), list[dict[str, Any]]()
    reason: str | None = None
    with held_notes():
        for experiment in experiments:
            missing = runner.check(experiment)
            reason = reason or (str(missing) if missing else None)
    for experiment in experiments:
        unavailable = set[tuple[str, ...]]()  # not sought again for each run
        for run in experiment.runs():
            names, record = (run.dataset, *run.targets), None
            if names not in unavailable:
                try:
                    record = runner.find_record(experiment, run)
                except DearError as error:
                    unavailable.add(names)
                    reason = reason or str(error)
            runs.append(
                {
                    "dataset": run.dataset,
                    "method": run.setup.method,
                    "variant": run.setup.variant,
                    "seed": run.seed,
                    "shots": run.shots,
                    "done": record is not None,
                }
            )
    return runs, reason


def check_device(machines: Machines, experiments: Sequence[Experiment]) -> None:
    """Raise SettingsError for contradictory training settings, an unavailable device, or a precision that it
    does not support. The devices of a cluster are checked there (`open_cluster`).
    """
    if machines.cluster is None:
        device = find_device(machines.device)
        for precision in (name for experiment in experiments for name in experiment.precisions):
            device_precision(precision, device)


def check_folders(experiments: Sequence[Experiment]) -> None:
    """Raise OutputError for an output folder that cannot be written to, or that would mix the records of two
    experiments. Creates nothing.
    """
    writers: dict[Path, Experiment] = {}
    for experiment in experiments:
        out, recipe = experiment.out.absolute(), experiment.recipe
        if (other := writers.setdefault(out.resolve(), experiment)) is not experiment:
            names = [writer.recipe or writer.protocol.name for writer in (other, experiment)]
            raise OutputError(f"{' and '.join(names)} both write to {experiment.out}: give each its own out.")
        existing = next(path for path in (out, *out.parents) if path.exists())
        if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
            why = "no permission" if existing.is_dir() else f"{existing} is not a folder"
            raise OutputError(f"cannot write to {out}: {why}. Choose another place with --out.")
        mark = out / MARK
        if recipe and mark.exists() and (earlier := os.fsdecode(mark.read_bytes()).strip()) != recipe:
            raise OutputError(
                f"{out} holds the runs of the recipe {shown(earlier)}, not of {recipe}: choose another place "
                "with --out."
            )


@contextmanager
def lock_folder(experiment: Experiment) -> Iterator[None]:
    """Create the folder of an experiment, and lock it. Raises OutputError if another process writes to it."""
    out = experiment.out
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
        if experiment.recipe:
            with output_file(out / MARK) as mark:
                mark.write(os.fsencode(f"{experiment.recipe}\n"))
        yield
    finally:
        with suppress(OSError):
            (out / LOCK).unlink()  # still held: one who opened it before sees that it is gone
        lock.release()


def _make_on_workers(
    tasks: Sequence[tuple[Experiment, Run]],
    runner: Runner,
    machines: Machines,
    progress: RunProgress,
    notes: Collection[warnings.WarningMessage],
) -> list[dict[str, Any]]:
    """Make the runs without a record on other processes. ``runner`` only looks for existing records;
    ``notes`` were printed before and are not repeated.
    """
    records = [runner.find_record(*task) for task in tasks]
    missing = [  # workers may have another working folder
        (replace(experiment, out=experiment.out.resolve()), run)
        for (experiment, run), record in zip(tasks, records, strict=True)
        if record is None
    ]
    if not missing:
        return [*filter(None, records)]
    if machines.cluster is None:
        opened = open_processes(min(machines.jobs, len(missing)), machines.device, progress)
    else:
        opened = open_cluster(machines.cluster, machines.device, machines.gpus, len(missing))
    with opened as pool:
        new = iter(make_runs(missing, pool, progress, {str(note.message) for note in notes}))
    return [next(new) if record is None else record for record in records]
