"""Make the runs of experiments, or list them in a dry run."""

import warnings
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from dear.backbone.device import find_device
from dear.data.loading import held_notes
from dear.data.sources.benchmarks import named_benchmark, standard_name
from dear.errors import DearError, OutputError, warn
from dear.evaluation.experiment import Experiment, Machines
from dear.evaluation.log import log_epochs
from dear.evaluation.resolve import MethodSetup, resolve
from dear.evaluation.runs import RunProgress, RunResult, check_experiment
from dear.evaluation.session import Session
from dear.evaluation.workers import Message, Task, make_runs_here, make_runs_in_processes, open_cluster
from dear.methods.registry import method_class
from dear.progress import TrainingStep, unreported
from dear.writing import make_folder, require_writable

WAITING = "waiting for a run that another command makes:"


def launch(
    experiments: Sequence[Experiment], machines: Machines | None = None, progress: RunProgress = unreported
) -> list[list[dict[str, Any]]]:
    """`make_runs`; returns the records, grouped by experiment. Raises the error of the first run that failed,
    once all others are made: called again, it makes only those without a record.
    """
    records, failed = make_runs(experiments, machines, progress)
    if failed:
        raise failed[0][1]
    return records


def make_runs(
    experiments: Sequence[Experiment], machines: Machines | None = None, progress: RunProgress = unreported
) -> tuple[list[list[dict[str, Any]]], list[tuple[Experiment, DearError]]]:
    """Make all runs of some experiments; returns their records, grouped by experiment, and the runs that
    failed, with their errors. A run with a record is not repeated; one that another command makes is waited
    for, and made here if that leaves no record.

    Everything that can be checked is checked before the first run. Runs in one process compute what
    experiments share only once. Raises DearError for what concerns all runs; existing records are kept.
    """
    machines = machines or Machines()
    check_folders(experiments)
    session = _open_session(machines)
    with ExitStack() as stack:
        if machines.log is not None:
            progress = stack.enter_context(log_epochs(machines.log, progress))
        with held_notes() as notes:
            for experiment in experiments:
                for error in check_experiment(session, experiment):
                    raise error
        for experiment in experiments:
            make_folder(experiment.out)
        cluster = None
        if machines.cluster is not None:
            cluster = stack.enter_context(open_cluster(machines))
            session.target = cluster.device
        by_experiment = [
            [Task(session, run) for run in replace(experiment, out=experiment.out.resolve()).runs()]
            for experiment in experiments
        ]
        tasks = [task for part in by_experiment for task in part]
        shown = {str(note.message) for note in notes}
        take = partial(_take, progress=progress, shown=shown, alone=len(tasks) == 1)
        for task in tasks:
            if task.result is not None:
                take(task, task.result)
        waiting = [task for task in tasks if task.result is None]

        def tell(number: int, message: Message) -> None:
            take(waiting[number], message)

        if cluster is not None:
            cluster.make_runs(waiting, tell)
        elif machines.jobs > 1:
            make_runs_in_processes(waiting, machines, tell)
        else:
            make_runs_here(waiting, session, tell)
    records = [
        [task.result.record for task in part if isinstance(task.result, RunResult)] for part in by_experiment
    ]
    return records, [(task.run, task.result) for task in tasks if isinstance(task.result, DearError)]


def _take(task: Task, message: Message, progress: RunProgress, shown: set[str], *, alone: bool) -> None:
    """Show what is told of a run, and give the run its result. ``shown`` are the warnings that were shown and
    are not repeated. Unless a run is ``alone``, its failure is told at once. Raises an OutputError, because
    no other run could be written either.
    """
    if isinstance(message, OutputError):
        raise message
    if isinstance(message, TrainingStep):
        progress(task.name, message)
        return
    if message is None:
        if WAITING not in shown:
            warn(f"{WAITING} {task.name}")
        shown.add(WAITING)
        return
    task.result = message
    for note in message.notes if isinstance(message, RunResult) else ():
        if note[0] not in shown:
            shown.add(note[0])
            warnings.showwarning(*note)
    if isinstance(message, DearError) and not alone:
        warn(f"{task.name} failed: {message}")
    progress(task.name, None)


def list_runs(
    experiments: Sequence[Experiment], machines: Machines
) -> tuple[list[dict[str, Any]], list[str]]:
    """The facts of each run of the experiments, with "done" if it has a record, and its work (`count_work`);
    and each thing that is missing for some, as data or weights, in the words of its error. Creates nothing.
    Raises DearError for any other error that would stop them.
    """
    check_folders(experiments)
    session, runs, missing = _open_session(machines), list[dict[str, Any]](), list[DearError]()
    with held_notes():
        for experiment in experiments:
            missing += check_experiment(session, experiment)
    for experiment in experiments:
        unavailable = set[tuple[str, ...]]()  # not sought again for each run
        for run in experiment.runs():
            result = None if run.data in unavailable else Task(session, run).result
            if isinstance(result, DearError):
                unavailable.add(run.data)
                missing.append(result)
            done = isinstance(result, RunResult)
            runs.append({**run.run_facts(), "done": done, **count_work(session, run)})
    return runs, list(dict.fromkeys(map(str, missing)))


def count_work(session: Session, run: Experiment) -> dict[str, int | None]:
    """The training "steps" of a single run, its teacher's among them, and its "test_images". A benchmark that
    is not there counts as it was published; None for other data that are not there. Approximate for a method
    that makes its own batches.
    """
    (setup, _, shots), protocol = run.single_run, run.protocol
    names = run.data if protocol.trained_on is None else (protocol.trained_on, *run.data)
    sizes = [_sizes_of(session, run, name, names[0]) for name in names]
    if sizes[0] is None:
        return {"steps": None, "test_images": None}
    (train_images, _, classes), steps = sizes[0], 0
    trained = len(protocol.training_classes(classes))
    values = resolve(protocol, setup, standard_name(names[0]), shots, run.train)
    learners = [(setup, values)]
    if (teacher := setup.declared.teacher) is not None:
        of_teacher = MethodSetup(teacher)
        arguments = protocol, of_teacher, standard_name(names[0]), shots, run.train
        learners.append((of_teacher, resolve(*arguments, student=values.authors)))
    for learner, its in learners:
        takes_steps = method_class(learner.method).takes_steps and getattr(its.method, "tuned", True)
        if learner.declared.trains and takes_steps:
            images, of = (train_images, classes) if learner.declared.unlabeled else (shots * trained, trained)
            steps += its.training.total_steps(images, of, its.training.epoch_steps(images))
    tested = [None if size is None else size[1] for size in sizes]
    return {"steps": steps, "test_images": None if None in tested else sum(filter(None, tested))}


def _sizes_of(session: Session, run: Experiment, name: str, source: str) -> tuple[int, int, int] | None:
    """The numbers of training images, of test images and of classes of a data set, if they are known."""
    try:
        dataset = session.dataset(name, run.dataset, source)
    except DearError:
        benchmark = named_benchmark(name)
        if benchmark is None:
            return None
        return benchmark.published.get("train", 0), benchmark.published["test"], benchmark.classes
    return len(dataset.train), len(dataset.test), len(dataset.classnames)


def check_folders(experiments: Sequence[Experiment]) -> None:
    """Raise OutputError for an output folder that cannot be written to, or that would mix the records of two
    experiments. Creates nothing.
    """
    writers: dict[Path, Experiment] = {}
    for experiment in experiments:
        out = experiment.out.absolute()
        if (other := writers.setdefault(out.resolve(), experiment)) is not experiment:
            names = [writer.recipe or writer.protocol.name for writer in (other, experiment)]
            raise OutputError(f"{' and '.join(names)} both write to {experiment.out}: give each its own out.")
        require_writable(out, "to", folder=True)


def _open_session(machines: Machines) -> Session:
    """The session of this process, which only resolves the runs where others make them. Raises SettingsError
    for a device that is not here.
    """
    if machines.cluster is not None:  # whose machines are not known yet
        return Session("cpu", target=torch.device("cpu" if machines.device == "cpu" else "cuda"))
    device = find_device(machines.device)
    return Session("cpu" if machines.jobs > 1 else device, target=device)
