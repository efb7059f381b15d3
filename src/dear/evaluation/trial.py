"""A run in progress: what a protocol trains and tests with, and the resulting record."""

import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from dear.data.dataset import Dataset
from dear.data.fewshot import ClassSubset, Pick
from dear.evaluation.adapt import Adapted, adapt
from dear.evaluation.answers import answers_of
from dear.evaluation.metrics import Answers, evaluate
from dear.evaluation.records import run_record
from dear.evaluation.resolve import ResolvedRun
from dear.evaluation.run_context import Progress, RunContext, no_progress
from dear.methods.base import Method


class Trial:
    """One method in one protocol. A protocol's `run` calls `train` once, then `test` as often as it likes;
    interrupted training resumes if there is a ``folder`` for checkpoints.
    """

    def __init__(
        self,
        context: RunContext,
        run: ResolvedRun,
        folder: Path | None = None,
        progress: Progress = no_progress,
    ) -> None:
        self.context, self.run, self.folder, self.progress = context, run, folder, progress
        self.pick: Pick | None = None
        self.teacher: Adapted | None = None
        self.epochs: list[dict[str, Any]] = []
        self.tested: int | None = None
        self.answers: list[dict[str, Any]] = []
        self._method: Method | None = None
        self._classes: tuple[tuple[str, ...], tuple[str, ...]] | None = None
        self._test_seconds = 0.0

    @property
    def source(self) -> Dataset:
        """The data set that is trained on."""
        return self.run.source

    @property
    def targets(self) -> tuple[Dataset, ...]:
        """The other data sets that are tested on."""
        return self.run.targets

    @property
    def method(self) -> Method:
        """The trained method."""
        assert self._method is not None, "a protocol trains before it tests"
        return self._method

    def train(self, classes: Sequence[int]) -> None:
        """Train the method on a few images of each of these classes."""
        adapted = adapt(
            self.context,
            self.run,
            classes,
            checkpoint=None if self.folder is None else checkpoint_of(self.folder, self.run),
            share=self.context.keep or self.run.protocol.trained_on is not None,
            label=self.run.name,
            progress=self.progress,
        )
        self._method, self.tested = adapted.method, adapted.tested
        self.teacher = adapted.teacher
        self._classes = adapted.method.classnames, tuple(self.source.templates)
        self.pick, self.epochs = adapted.pick, adapted.epochs

    def test(
        self,
        dataset: Dataset,
        classes: Sequence[int],
        *,
        novel: bool = False,
        part: Sequence[str | int] = (),
    ) -> dict[str, Any]:
        """Scores on the test images of some classes, among these classes; ``novel`` as in `evaluate`. The
        answers go into the record, if ``part`` names the place of the scores in the results.
        """
        started = time.perf_counter()
        self.context.cache.begin(dataset.identity)
        self.method.for_target(None if dataset is self.source else dataset.name)
        if self._classes != (named := _named(dataset, classes)):
            self.method.set_classes(*named)
            self._classes = named
        every = len(classes) == len(dataset.classnames)
        images = dataset.test if every else ClassSubset(dataset.test, classes)
        said: list[Answers] = []
        scores = evaluate(
            self.method,
            images,
            cache=self.context.cache,
            precision=self.run.training.precision,
            novel=novel,
            watch=said.append,
        )
        self._test_seconds += time.perf_counter() - started
        if part:
            self.answers += [answers_of(part, dataset, images, named[0], one) for one in said]
        return asdict(scores)

    def make(self) -> dict[str, Any]:
        """Run the protocol; returns the record."""
        results = self.run.protocol.run(self)
        return run_record(
            self.context,
            self.run,
            self.method,
            results,
            answers=self.answers,
            pick=self.pick,
            epochs=self.epochs,
            tested=self.tested,
            teacher=self.teacher,
            test_seconds=self._test_seconds,
        )


def checkpoint_of(folder: Path, run: ResolvedRun) -> Path:
    """The checkpoint of a run's training."""
    return run.file(folder, ".pt")


def _named(dataset: Dataset, classes: Sequence[int]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The arguments of `Method.set_classes`."""
    return tuple(dataset.classnames[label] for label in classes), tuple(dataset.templates)
