"""Experiments, executed: in turn, on several processes or GPUs, on a Ray cluster, or data parallel."""

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TextIO

import torch

from dear.backbone.device import find_device
from dear.errors import OutputError, SettingsError
from dear.evaluation.experiment import Experiment, Run
from dear.evaluation.machines import Machines
from dear.evaluation.records import make_folder
from dear.evaluation.resolve import training_of
from dear.evaluation.runs import RunProgress, Workplace, silent
from dear.training.devices import device_precision, make_fabric
from dear.writing.files import whole

MARK, LOCK = ".recipe", ".lock"


Job = tuple[int, int]
"""The places of an experiment and of a run in it."""


def execute(
    experiments: Sequence[Experiment], machines: Machines | None = None, progress: RunProgress = silent
) -> list[list[dict[str, Any]]]:
    """Make all runs of some experiments; returns their records, experiment by experiment.

    Everything that can be checked is checked before the first run. In turn, what experiments share is
    computed once. Raises DearError; the records of finished runs are kept.
    """
    machines = machines or Machines()
    distinct_places(experiments)
    runs = [experiment.runs() for experiment in experiments]
    with ExitStack() as stack:
        check_device(machines, experiments)
        if machines.jobs > 1 or machines.cluster is not None:
            here = Workplace("cpu")
            _check(experiments, here)
            for experiment in experiments:
                stack.enter_context(claimed(experiment))
            found = _spread(experiments, runs, here, machines, progress)
            return [[found[at, number] for number in range(len(some))] for at, some in enumerate(runs)]
        workplace = _workplace(machines, experiments)
        _check(experiments, workplace)
        for experiment in experiments:
            if workplace.fabric is None or workplace.fabric.is_global_zero:
                stack.enter_context(claimed(experiment))
        return [
            [workplace.perform(experiment, run, progress) for run in some]
            for experiment, some in zip(experiments, runs, strict=True)
        ]


def first_process() -> bool:
    """Whether this process is the one that writes and shows: the first of data parallel training."""
    distributed = torch.distributed
    return not (distributed.is_available() and distributed.is_initialized()) or distributed.get_rank() == 0


def check_device(machines: Machines, experiments: Sequence[Experiment]) -> None:
    """Raise SettingsError for settings of training that contradict each other, for a device that is not here,
    or for a precision that it does not have; what a cluster has is told there.
    """
    precisions = [training_of(plan, one.train).precision for one in experiments for plan in one.plans]
    if machines.cluster is None:
        device = find_device(machines.device)
        for precision in precisions:
            device_precision(precision, device)


def distinct_places(experiments: Sequence[Experiment]) -> None:
    """Raise OutputError if two experiments write to one folder."""
    places: dict[Path, Experiment] = {}
    for experiment in experiments:
        other = places.setdefault(experiment.out.resolve(), experiment)
        if other is not experiment:
            names = [str(one.about.get("recipe") or one.protocol) for one in (other, experiment)]
            raise OutputError(
                f"{' and '.join(names)} write to one place, {experiment.out}: give each an out of its own."
            )


def check_places(experiments: Sequence[Experiment]) -> None:
    """Raise OutputError for what `execute` would refuse of the experiments' folders; nothing is made."""
    distinct_places(experiments)
    for out, recipe in [(one.out.absolute(), str(one.about.get("recipe") or "")) for one in experiments]:
        there = next(place for place in (out, *out.parents) if place.exists())
        if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
            why = "no permission" if there.is_dir() else f"{there} is no folder"
            raise OutputError(f"cannot write to {out}: {why}. Choose another place with --out.")
        if recipe and (out / MARK).is_file():
            _require_owner(out, recipe, (out / MARK).read_text(encoding="utf-8", errors="replace").strip())


def _require_owner(out: Path, recipe: str, owner: str) -> None:
    if owner not in ("", recipe):
        raise OutputError(
            f"{out} holds the runs of the recipe {owner}, not of {recipe}: give another place with --out."
        )


@contextmanager
def claimed(experiment: Experiment) -> Iterator[None]:
    """Hold the folder of an experiment. Raises OutputError if it is another recipe's or in use."""
    out, recipe = experiment.out, str(experiment.about.get("recipe") or "")
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
    """Write whose runs a folder holds, unless it says so; an empty mark is nobody's."""
    mark = out / MARK
    try:
        owner = mark.read_text(encoding="utf-8", errors="replace").strip() if mark.exists() else ""
        if not owner:
            with whole(mark) as file:
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
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # let go by the system if the process is killed
        if not os.path.samestat(os.stat(out / LOCK), os.fstat(file)):  # the one before us has just removed it
            raise OSError("the lock is another file")
    except OSError as error:
        raise OutputError(
            f"another process is writing to {out}: wait for it, or give another place with --out."
        ) from error


def _check(experiments: Sequence[Experiment], workplace: Workplace) -> None:
    for experiment in experiments:
        workplace.check(experiment)


def _workplace(machines: Machines, experiments: Sequence[Experiment]) -> Workplace:
    """A workplace in this process; it starts the other processes of data parallel training."""
    if machines.devices * machines.nodes == 1 and machines.log is None:
        return Workplace(machines.device)
    precisions = {experiment.train.precision or "auto" for experiment in experiments}
    if len(precisions) > 1:
        raise SettingsError(
            f"the experiments have different precisions ({', '.join(sorted(precisions))}): run them apart."
        )
    fabric = make_fabric(
        find_device(machines.device),
        precisions.pop(),
        devices=machines.devices,
        nodes=machines.nodes,
        log=machines.log,
    )
    fabric.launch()
    return Workplace(str(fabric.device), fabric)


def _spread(
    experiments: Sequence[Experiment],
    runs: Sequence[Sequence[Run]],
    here: Workplace,
    machines: Machines,
    progress: RunProgress,
) -> dict[Job, dict[str, Any]]:
    """Make the runs that have no record yet on other processes; ``here`` only looks for records."""
    found: dict[Job, dict[str, Any]] = {}
    tasks: dict[Job, tuple[Experiment, Run]] = {}
    for at, experiment in enumerate(experiments):
        placed = replace(experiment, out=experiment.out.resolve())  # workers may be somewhere else
        for number, run in enumerate(runs[at]):
            record = here.existing(experiment, run)
            if record is None:
                tasks[at, number] = placed, run
            else:
                found[at, number] = record
    if not tasks:
        return found
    if machines.cluster is not None:
        from dear.evaluation.cluster import on_cluster

        made = on_cluster(tasks, machines.cluster, device=machines.device, gpus=machines.gpus, tell=progress)
    else:
        from dear.evaluation.processes import in_processes

        made = in_processes(tasks, machines.jobs, device=machines.device, tell=progress)
    return found | made
