"""A dry run: the runs of experiments, the work of each, all that is missing, and an estimate of the time that
they take here. Nothing is created.
"""

import time
import warnings
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, pairwise
from statistics import median
from typing import Any, NamedTuple

import torch

from dear.backbone.device import mixed
from dear.data.fewshot import Subset, Unlabeled, draw_few
from dear.data.loading import held_notes
from dear.data.sources.benchmarks import NoRootError, named_benchmark, standard_name
from dear.errors import DataError, DearError
from dear.evaluation.experiment import Experiment, Machines
from dear.evaluation.launch import open_session, plan_runs
from dear.evaluation.predictions import predict
from dear.evaluation.resolve import MethodSetup, ResolvedRun, resolve
from dear.evaluation.runs import RunResult
from dear.evaluation.session import Session
from dear.evaluation.trial import build_untrained
from dear.methods.base import Method
from dear.methods.registry import method_class
from dear.progress import Progress, TrainingStep, silent
from dear.training.cache import CACHE_BYTES, Cache, trunk_facts
from dear.training.loop import train

TIMED_STEPS, TIMED_BATCHES = 4, 3
"""How many steps and batches of test images are timed of a method; one before them is not."""
Clock = Callable[[], float]


class Work(NamedTuple):
    """What a method, or its teacher, does in a run.

    Attributes:
        classes: The number of classes that it trains on.
        names: Class names whose prompts are encoded, each as often as classes are set.
        training_images: Images that it trains on.
        steps: Its training steps.
        test_images: Images that it is tested on.
        kept_images: Images that it is tested on of which an earlier run has left the trunk outputs in memory.
    """

    classes: int
    names: int
    training_images: int
    steps: int
    test_images: int
    kept_images: int = 0


@dataclass(frozen=True)
class UnitTimes:
    """Seconds that units of a method's work took, trained on a number of ``classes``; several if several were
    timed.

    Attributes:
        name: Of a class name whose prompts are encoded.
        training_image: Of what comes before the first step, or is done in place of steps, by image.
        step: Of a training step.
        test_image: Of a test image, by batch.
        kept_image: Of one whose trunk output is in memory.
        trunk: What the trunk outputs depend on beside the images (`trunk_facts`).
        trunk_bytes: Of the trunk output of an image.
    """

    classes: int
    name: tuple[float, ...]
    training_image: tuple[float, ...]
    step: tuple[float, ...]
    test_image: tuple[float, ...]
    kept_image: tuple[float, ...]
    trunk: Hashable = None
    trunk_bytes: int = 0


class Seconds(NamedTuple):
    """An estimate of time: by the medians of the times of units, and by the shortest and the longest."""

    usual: float
    shortest: float
    longest: float


class _EnoughError(Exception):
    """Enough steps were timed."""


def list_runs(
    experiments: Sequence[Experiment],
    machines: Machines,
    *,
    timed: bool = False,
    clock: Clock = time.perf_counter,
    progress: Progress = silent,
) -> tuple[list[dict[str, Any]], list[str]]:
    """The facts of each run of the experiments, with "done" if it has a record, and its work: the training
    "steps", its teacher's among them, and the "test_images"; None where data are not known (`count_work`).
    If ``timed``, also the `Seconds` that it takes on this machine by itself, None where data or weights are
    missing. And each thing that is missing for some, as data or weights, in the words of its error. Creates
    nothing. Raises DearError for any other error that would stop them.
    """
    session = Session(machines.device) if timed else open_session(machines)
    listed, errors = list[dict[str, Any]](), list[DearError]()
    with held_notes():
        by_experiment = plan_runs(session, experiments)
        for task in chain.from_iterable(by_experiment):
            errors += list_missing(session, task.run) if task.missing else ()
    for tasks in by_experiment:
        runs, to_time = [task.run for task in tasks], dict[MethodSetup, list[ResolvedRun]]()
        works, facts = [count_work(session, run) for run in runs], list[dict[str, Any]]()
        for task, work in zip(tasks, works, strict=True):
            result = task.missing or task.result
            if isinstance(result, DearError):
                errors.append(result)
            elif timed and result is None:
                to_time.setdefault(task.run.methods[0], []).append(session.resolve_run(task.run))
            done = isinstance(result, RunResult)
            facts.append({**task.run.run_facts(), "done": done, **_sum_work(work)})
        if timed:
            unit_times = dict[MethodSetup, list[list[UnitTimes]]]()
            for at, (setup, resolved) in enumerate(to_time.items(), start=1):
                try:
                    unit_times[setup] = time_units(session, resolved, clock)
                except DearError as error:
                    errors.append(error)
                progress("timing methods", at, len(to_time))
            left = [None if fact["done"] else work for fact, work in zip(facts, works, strict=True)]
            for fact, seconds in zip(facts, _estimates(runs, left, unit_times), strict=True):
                fact["seconds"] = None if seconds is None else seconds._asdict()
        listed += facts
    errors.sort(key=lambda error: not isinstance(error, DataError))
    if without_root := [name for error in errors if isinstance(error, NoRootError) for name in error.names]:
        others = [error for error in errors if not isinstance(error, NoRootError)]
        errors = [NoRootError(*dict.fromkeys(without_root)), *others]
    return listed, list(dict.fromkeys(map(str, errors)))


def list_missing(session: Session, run: Experiment) -> Iterator[DearError]:
    """The error of each data set, of the weights, the role table and the teacher's weights of a single run:
    resolving it ends at the first.
    """
    setup, _, shots = run.single_run

    def find_roles() -> None:
        session.roles(session.clip(*run.backbone, run.named_by), setup, run.roles)

    def find_teacher() -> None:
        if setup.declared.teacher is not None:
            values = resolve(run.protocol, setup, standard_name(run.names[0]), shots, run.train)
            model, weights = values.method.teacher_backbone()
            if model:
                session.clip(model, weights, run.named_by)

    finds: list[Callable[[], object]] = [
        partial(session.dataset, name, run.dataset, run.names[0]) for name in run.names
    ]
    for find in (*finds, find_roles, find_teacher):
        try:
            find()
        except DearError as error:
            yield error


def _estimates(
    runs: Sequence[Experiment],
    works: Sequence[list[Work] | None],
    unit_times: Mapping[MethodSetup, list[list[UnitTimes]]],
) -> Iterator[Seconds | None]:
    """The time of each run whose work is known: test images are in memory if an earlier run has left them
    there and they fit.
    """
    encoded = set[Hashable]()
    for run, work in zip(runs, works, strict=True):
        known = unit_times.get(run.methods[0])
        if known is None or work is None:
            yield None
            continue
        times, images, teachers = known[0][0], work[0].test_images, work[1:]
        if (run.data, times.trunk) in encoded and images * times.trunk_bytes <= CACHE_BYTES:
            work = [work[0]._replace(test_images=0, kept_images=images), *teachers]
        encoded.add((run.data, times.trunk))
        yield estimate(work, known)


def _sum_work(works: Sequence[Work] | None) -> dict[str, int | None]:
    if works is None:
        return {"steps": None, "test_images": None}
    return {
        "steps": sum(work.steps for work in works),
        "test_images": sum(work.test_images for work in works),
    }


def count_work(session: Session, run: Experiment) -> list[Work] | None:
    """The work of a single run: its method's, and after it that of its teacher. A benchmark that is not there
    counts as it was published; None for other data that are not there. Approximate for a method that makes
    its own batches.
    """
    (setup, _, shots), protocol = run.single_run, run.protocol
    sizes = [_sizes_of(session, run, name, run.names[0]) for name in run.names]
    if None in sizes:
        return None
    (train_images, _, classes), *_ = known = [size for size in sizes if size is not None]
    trained = len(protocol.training_classes(classes))
    values = resolve(protocol, setup, standard_name(run.names[0]), shots, run.train)
    learners = [(setup, values)]
    if (teacher := setup.declared.teacher) is not None:
        of_teacher = MethodSetup(teacher)
        arguments = protocol, of_teacher, standard_name(run.names[0]), shots, run.train
        learners.append((of_teacher, resolve(*arguments, student=values.authors)))
    works = list[Work]()
    for learner, its in learners:
        images, of = (train_images, classes) if learner.declared.unlabeled else (shots * trained, trained)
        takes_steps = method_class(learner.method).takes_steps and getattr(its.method, "tuned", True)
        steps = its.training.total_steps(images, of, its.training.epoch_steps(images)) if takes_steps else 0
        trains = learner.declared.trains
        works.append(Work(trained, of, images * trains, steps * trains, 0))
    # Of halves of classes both are set, and all of them at once.
    names_set = sum(size[2] for size in known) * (2 if trained < classes else 1)
    works[0] = works[0]._replace(names=names_set, test_images=sum(size[1] for size in known))
    return works


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


def time_units(session: Session, runs: Sequence[ResolvedRun], clock: Clock) -> list[list[UnitTimes]]:
    """The times of a method's units of work, and after it its teacher's, from the runs of it that train on
    the fewest and on the most classes. Raises the DearError of a run that fails.
    """
    by_classes = {len(run.protocol.training_classes(len(run.source.classnames))): run for run in runs}
    return [_time_run(session, by_classes[of], clock)[1] for of in sorted({min(by_classes), max(by_classes)})]


def _time_run(session: Session, run: ResolvedRun, clock: Clock) -> tuple[Method, list[UnitTimes]]:
    """A method that was trained for a few steps, and its times, its teacher's after them."""
    method, of_teacher = build_untrained(session, run), list[UnitTimes]()
    if run.teacher is not None:
        teacher, of_teacher = _time_run(session, run.teacher, clock)
        method.set_teacher(teacher)
    dataset, training, declared = run.source, run.training, run.setup.declared
    base = run.protocol.training_classes(len(dataset.classnames))
    classes = range(len(dataset.classnames)) if declared.unlabeled else base
    names = tuple(dataset.classnames[label] for label in classes)
    looks = [clock()]

    def look(_step: TrainingStep | None = None) -> None:
        looks.append(clock())
        if len(looks) > TIMED_STEPS + 2:
            raise _EnoughError

    with torch.no_grad(), mixed(method.clip.image.projection.device, training.precision):
        method.set_classes(names, dataset.templates)
        text = method.text_features()
    name_time = (clock() - looks[0]) / len(names)
    images, looks = Subset(dataset.train, torch.arange(0)), [clock()]
    if declared.trains:
        shots = max(2, -(-(TIMED_STEPS + 1) * training.batch // len(base)))
        few = draw_few(dataset, min(run.shots, shots), run.seed, base)[1]
        images = Unlabeled(dataset.train) if declared.unlabeled else few
        try:
            with warnings.catch_warnings(action="ignore"):  # of a short training
                train(method, images, training, seed=run.seed, progress=look)
        except _EnoughError:
            method.eval()
        if not method.takes_steps:
            look()
    before, *ends = looks[1:] or looks
    steps = [later - earlier for earlier, later in pairwise(ends)]
    if declared.trains and method.takes_steps and not steps:
        steps = [ends[0] - before]
    test, batch, cache = dataset.test, method.clip.image.images_at_once, Cache()
    parts = torch.arange(min(len(test), (TIMED_BATCHES + 1) * batch)).split(batch)

    def test_times() -> tuple[float, ...]:
        looks = [clock()]
        for part in parts:
            images = Subset(test, part)
            predict(method, images, vocabulary=(names, text), precision=training.precision, cache=cache)
            looks.append(clock())
        times = [
            (later - earlier) / len(part)
            for (earlier, later), part in zip(pairwise(looks), parts, strict=True)
        ]
        return tuple(times[1:] or times)

    times = UnitTimes(
        len(base),
        name=(name_time,),
        training_image=((before - looks[0]) / max(1, len(images)),),
        step=tuple(steps) or (0.0,),
        test_image=test_times(),
        kept_image=test_times(),  # the first call has left them in the cache
        trunk=trunk_facts(method, training.precision),
        trunk_bytes=cache.bytes // sum(map(len, parts)),
    )
    return method, [times, *of_teacher]


def estimate(works: Sequence[Work], unit_times: Sequence[Sequence[UnitTimes]]) -> Seconds:
    """The time of a run: its work times the times of units, which are of the method (and its teacher) with
    the fewest and with the most classes; between them they are taken to grow evenly with the classes.
    """
    pairs = [(work, [of_run[at] for of_run in unit_times]) for at, work in enumerate(works)]
    return Seconds(
        *(sum(_seconds(work, times, choose) for work, times in pairs) for choose in (median, min, max))
    )


def _seconds(work: Work, times: Sequence[UnitTimes], choose: Callable[[Sequence[float]], float]) -> float:
    few, many = times[0], times[-1]
    share = 0.0 if many is few else (work.classes - few.classes) / (many.classes - few.classes)
    counts = {"name": work.names, "training_image": work.training_images, "step": work.steps}
    counts |= {"test_image": work.test_images, "kept_image": work.kept_images}
    total = 0.0
    for unit, count in counts.items():
        low, high = choose(getattr(few, unit)), choose(getattr(many, unit))
        total += count * max(0.0, low + share * (high - low))
    return total
