"""A dry run: the runs of experiments, the work of each, and all that is missing. Nothing is created."""

from collections.abc import Sequence
from typing import Any

from dear.data.loading import held_notes
from dear.data.sources.benchmarks import named_benchmark, standard_name
from dear.errors import DearError
from dear.evaluation.experiment import Experiment, Machines
from dear.evaluation.launch import check_folders, open_session
from dear.evaluation.resolve import MethodSetup, resolve
from dear.evaluation.runs import RunResult, check_experiment
from dear.evaluation.session import Session
from dear.evaluation.workers import Task
from dear.methods.registry import method_class


def list_runs(
    experiments: Sequence[Experiment], machines: Machines
) -> tuple[list[dict[str, Any]], list[str]]:
    """The facts of each run of the experiments, with "done" if it has a record, and its work (`count_work`);
    and each thing that is missing for some, as data or weights, in the words of its error. Creates nothing.
    Raises DearError for any other error that would stop them.
    """
    check_folders(experiments)
    session, runs, errors = open_session(machines), list[dict[str, Any]](), list[DearError]()
    with held_notes():
        missing = [check_experiment(session, experiment) for experiment in experiments]
    for experiment, absent in zip(experiments, missing, strict=True):
        errors += absent.values()
        for run in experiment.runs():
            needs = {run.backbone, *run.methods, *run.data, run.protocol.trained_on}
            result = None if needs & absent.keys() else Task(session, run).result
            if isinstance(result, DearError):
                errors.append(result)
            done = isinstance(result, RunResult)
            runs.append({**run.run_facts(), "done": done, **count_work(session, run)})
    return runs, list(dict.fromkeys(map(str, errors)))


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
