"""Estimates of the cost of experiments: the time of a few steps of each plan, times its number of steps."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from dear.backbone.choice import warn_of_toy
from dear.data.fewshot import ClassSubset, Subset, Unlabelled
from dear.data.notes import held_notes
from dear.errors import DearError, UnknownNameError
from dear.evaluation.adapt import fresh
from dear.evaluation.experiment import Experiment, Run
from dear.evaluation.memory import peak, start_counting
from dear.evaluation.metrics import evaluate
from dear.evaluation.resolve import ResolvedRun
from dear.evaluation.run_context import RunContext
from dear.evaluation.runs import Runner, check_data, check_methods
from dear.training.loop import train

STEPS, TESTED = 2, 32


@dataclass(frozen=True)
class Estimate:
    """A run to be made and its estimated cost; None where it could not be timed.

    Attributes:
        done: Whether its record already exists.
        memory: Peak resident memory (of the GPU's memory, on a GPU), in MiB.
    """

    dataset: str
    method: str
    variant: str | None
    seed: int
    shots: int
    done: bool
    seconds: float | None
    memory: float | None


@dataclass(frozen=True)
class _Speed:
    step: float
    image: float
    memory: float


def estimates(experiments: Sequence[Experiment], device: str = "auto") -> tuple[list[Estimate], str | None]:
    """An estimate for each run; if no time could be estimated, also the reason.

    Two training steps and 32 test images are timed for each method and span, on the data set of its first
    run, after one warm-up step. Not included: savings by caches (so it overestimates where runs share views),
    loading the model, and how the time of a step varies with the number of classes. Raises DearError for
    any error other than missing data or weights.
    """
    runner, found, why = Runner(device), list[Estimate](), None
    with held_notes():
        for experiment in experiments:
            why = why or _missing(runner, experiment)
    speeds: dict[object, list[_Speed]] = {}
    for experiment in experiments:
        for run in experiment.runs():
            kind = (experiment.model, run.protocol, run.plan.method, run.plan.settings, experiment.train)
            try:
                if kind not in speeds:
                    speeds[kind] = []
                    speeds[kind] = _timed(runner.context(experiment), runner.resolve(experiment, run))
                done = runner.existing(experiment, run) is not None
            except DearError as error:
                why, done = why or str(error), False
            found.append(_estimate(runner, experiment, run, done, speeds[kind]))
    return found, why


def _missing(runner: Runner, experiment: Experiment) -> str | None:
    """Why a run cannot begin yet: missing data or weights. Raises DearError for all other errors."""
    try:
        found = runner.load_all(experiment)
    except UnknownNameError:
        raise
    except DearError as error:  # for example a benchmark that is not downloaded yet
        return str(error)
    check_data(experiment, found)
    warn_of_toy(experiment.backbone.model, world=experiment.world)
    try:
        context = runner.context(experiment)
    except DearError as error:
        return str(error)
    check_methods(experiment, context, [*found.values()])
    return None


def _estimate(runner: Runner, experiment: Experiment, run: Run, done: bool, speeds: list[_Speed]) -> Estimate:
    run_facts = (run.dataset, run.plan.method, run.plan.variant, run.seed, run.shots, done)
    if done or not speeds:
        return Estimate(*run_facts, 0.0 if done else None, None)
    resolved = runner.resolve(experiment, run)
    trainings = [resolved] if resolved.teacher is None else [resolved, resolved.teacher]
    tested = sum(len(dataset.test) for dataset in resolved.datasets) * run.protocol.test_passes
    seconds = tested * speeds[0].image
    for one, speed in zip(trainings, speeds, strict=True):
        for classes in run.protocol.stages(len(resolved.source.classnames)):
            images = len(resolved.source.train) if one.plan.unlabelled else len(classes) * run.shots
            seconds += one.training.epochs * one.training.steps(images) * speed.step if speed.step else 0
    return Estimate(*run_facts, seconds, max(speed.memory for speed in speeds))


def _timed(context: RunContext, run: ResolvedRun) -> list[_Speed]:
    """Seconds per training step and per test image, of the method, then of its teacher if it has one."""
    dataset, taught = run.source, list[_Speed]()
    classes = run.protocol.stages(len(dataset.classnames))[0]
    method = fresh(context, run)
    if run.teacher is not None:
        above = context.of_teacher(run)
        taught = _timed(above, run.teacher)
        method.set_teacher(fresh(above, run.teacher))
    start_counting()
    known = range(len(dataset.classnames)) if run.plan.unlabelled else classes
    method.set_classes([dataset.classnames[label] for label in known], dataset.templates)
    pool = Unlabelled(dataset.train) if run.plan.unlabelled else ClassSubset(dataset.train, classes)
    step = 0.0
    if method.trainable and method.takes_steps:
        once = replace(run.training, epochs=1, warmup_epochs=0, view_cache=0.0)
        for steps in (1, STEPS):
            few = Subset(pool, torch.arange(min(steps * once.batch, len(pool))))
            started = time.perf_counter()
            train(method, few, once, seed=run.seed)
            step = (time.perf_counter() - started) / once.steps(len(few))
    known_images = ClassSubset(dataset.test, known)
    evaluate(method, Subset(known_images, torch.arange(1)))  # one-time work
    tested = Subset(known_images, torch.arange(min(TESTED, len(known_images))))
    started = time.perf_counter()
    evaluate(method, tested)
    image = (time.perf_counter() - started) / len(tested)
    peaks = peak()
    return [_Speed(step, image, float(peaks["gpu"] or peaks["resident"] or 0.0)), *taught]
