"""A dry run: the runs of experiments, the work of each, and all that is missing. Nothing is created."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from dear.data.loading import deferred_warnings
from dear.data.sources.benchmarks import NoRootError, named_benchmark, standard_name
from dear.errors import DataError, DearError
from dear.evaluation.experiment import Experiment, Machines, Run
from dear.evaluation.launch import open_session, plan_runs
from dear.evaluation.records import is_record_name, read_record
from dear.evaluation.resolve import MethodSetup, ResolvedSettings, resolve
from dear.evaluation.runs import RunResult
from dear.evaluation.session import Session


class Work(NamedTuple):
    """The training steps of a run, its teacher's among them, and the images that it is tested on; None where
    data are not known.
    """

    steps: int | None
    test_images: int | None


def list_runs(
    experiments: Sequence[Experiment], machines: Machines
) -> tuple[list[dict[str, Any]], list[str]]:
    """The facts of each run of the experiments, with "done" if it has a record, its `Work`, and the "seconds"
    that runs of its method took (`seconds_by_method`; None if its folder has no record of one). And each
    thing that is missing for some, as data or weights, in the words of its error. Creates nothing. Raises
    DearError for any other error that would stop them.
    """
    session, listed, errors = open_session(machines), list[dict[str, Any]](), list[DearError]()
    with deferred_warnings():
        by_experiment = plan_runs(session, experiments)
        for run, _ in chain.from_iterable(by_experiment):
            errors += () if run.key else list_missing(session, run)
    for experiment, runs in zip(experiments, by_experiment, strict=True):
        seconds = seconds_by_method(experiment.out)
        for run, result in runs:
            if isinstance(result, DearError):
                errors.append(result)
            facts, work = run.identifying_facts(), count_work(session, run)
            facts |= {"done": isinstance(result, RunResult), **work._asdict()}
            listed.append(facts | {"seconds": seconds.get(facts["method"])})
    errors.sort(key=lambda error: not isinstance(error, DataError))
    if without_root := [name for error in errors if isinstance(error, NoRootError) for name in error.names]:
        others = [error for error in errors if not isinstance(error, NoRootError)]
        errors = [NoRootError(*dict.fromkeys(without_root)), *others]
    return listed, list(dict.fromkeys(map(str, errors)))


def seconds_by_method(folder: Path) -> dict[str, float]:
    """The median time of a run of each method, training and test, of the records in a folder. Files that are
    damaged or no records do not count.
    """
    by_method = defaultdict[str, list[float]](list)
    for path in folder.glob("*.json"):
        if is_record_name(path.name):
            try:
                record = read_record(path)
            except DataError:
                continue
            by_method[record["method"]].append(sum(record.get("seconds", {}).values()))
    return {method: median(seconds) for method, seconds in by_method.items()}


def list_missing(session: Session, run: Run) -> Iterator[DearError]:
    """The error of each data set, of the weights, the role table and the teacher's weights of a run:
    resolving it ends at the first.
    """
    shared, setup = run.experiment, run.setup

    def find_roles() -> None:
        session.roles(session.clip(*shared.backbone, shared.named_by), setup, shared.roles)

    def find_teacher() -> None:
        if setup.declared.teacher is not None:
            source = standard_name(run.data[0])
            values = resolve(shared.protocol, setup, source, run.shots, shared.train)
            model, weights = values.method.teacher_backbone()
            if model:
                session.clip(model, weights, shared.named_by)

    finds: list[Callable[[], object]] = [
        partial(session.dataset, name, shared.dataset, run.data[0]) for name in run.data
    ]
    for find in (*finds, find_roles, find_teacher):
        try:
            find()
        except DearError as error:
            yield error


def count_work(session: Session, run: Run) -> Work:
    """The work of a run. A benchmark that is not there counts as it was published. Approximate for a
    method that makes its own batches.
    """
    setup, shots, train = run.setup, run.shots, run.experiment.train
    protocol, source = run.experiment.protocol, standard_name(run.data[0])
    sizes = [_sizes_of(session, run, name) for name in run.data]
    known = [size for size in sizes if size is not None]
    if len(known) < len(sizes):
        return Work(None, None)
    train_images, _, classes = known[0]
    trained = len(protocol.training_classes(classes))
    learners = list[tuple[MethodSetup, ResolvedSettings]]()
    for candidate in setup.candidates():
        learners.append((candidate, values := resolve(protocol, candidate, source, shots, train)))
        if (teacher := setup.declared.teacher) is not None:
            taught_by, student = MethodSetup(teacher), values.authors
            learners.append((taught_by, resolve(protocol, taught_by, source, shots, train, student=student)))
    steps = 0
    for learner, settings in learners:
        if learner.declared.takes_steps(settings.method):
            used = (train_images, classes) if learner.declared.unlabeled else (shots * trained, trained)
            steps += settings.training.total_steps(*used, settings.training.epoch_steps(used[0]))
    return Work(steps, sum(test_images for _, test_images, _ in known))


def _sizes_of(session: Session, run: Run, name: str) -> tuple[int, int, int] | None:
    """The numbers of training images, of test images and of classes of a data set, if they are known."""
    try:
        dataset = session.dataset(name, run.experiment.dataset, run.data[0])
    except DearError:
        benchmark = named_benchmark(name)
        if benchmark is None:
            return None
        return benchmark.published.get("train", 0), benchmark.published["test"], benchmark.classes
    return len(dataset.train), len(dataset.test), len(dataset.classnames)
