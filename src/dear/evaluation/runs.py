"""Runs, one after the other: each leaves a record, none is repeated, and an interrupted one resumes."""

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from dear.backbone.choice import BackboneName, warn_of_toy
from dear.backbone.clip import Clip, fill
from dear.backbone.device import set_threads
from dear.backbone.load import load_clip, named_weights
from dear.data.dataset import Dataset
from dear.data.fewshot import draw_few
from dear.data.image_check import leave_out_copies
from dear.data.loading import load_dataset
from dear.data.settings import DataSettings
from dear.errors import DataError, DearError, SettingsError, UnknownNameError, first_line, of_memory
from dear.evaluation.experiment import Experiment, Run
from dear.evaluation.predictions import save_predictions
from dear.evaluation.protocols.base import Protocol
from dear.evaluation.protocols.base_to_novel import BaseToNovel
from dear.evaluation.records import make_folder, read_record
from dear.evaluation.resolve import MethodSetup, ResolvedRun
from dear.evaluation.run_context import RunContext
from dear.evaluation.trial import (
    Trial,
    check_prompts,
    find_longest_name,
    remove_checkpoints,
    run_record,
    validation_images,
)
from dear.methods.registry import check_towers, known_method
from dear.progress import TrainingStep
from dear.roles.packaged import find_role_table, role_table
from dear.roles.table import RoleTable
from dear.writing import UNFINISHED, output_file, write_json

RunProgress = Callable[[str, TrainingStep | None], None]
"""Called with the name of a run after each step of its training, and with None at its end."""


def silent(_run: str, _step: TrainingStep | None) -> None:
    """Ignore progress."""


@dataclass(frozen=True)
class RunResult:
    """What a run leaves: its record and the file of it, its predictions (.npz), and warnings."""

    record: dict[str, Any]
    path: Path
    predictions: bytes | None
    notes: list[tuple[Any, ...]]


class Runner:
    """Makes runs, and keeps in memory what the next one may need: data sets, models and their caches.

    Attributes:
        target: The device that runs are resolved for, where other processes make them.
    """

    def __init__(self, device: str = "auto", target: torch.device | None = None) -> None:
        self.device, self.target = device, target
        self._datasets: dict[tuple[str, str, DataSettings], Dataset] = {}
        self._models: dict[tuple[BackboneName, Path | None], RunContext] = {}
        # Of the last experiment: it may have thousands of runs.
        self._context: tuple[Experiment, RunContext] | None = None

    def check(self, experiment: Experiment) -> DearError | None:
        """Check an experiment before anything is computed. Returns the error if data or weights are missing:
        they may be there later. Raises DearError for anything else.
        """
        try:
            datasets = self.load_all(experiment)
        except UnknownNameError:
            raise
        except DearError as error:  # for example a benchmark that is not downloaded yet
            return error
        check_data(experiment, datasets)
        warn_of_toy(experiment.backbone.model, world=experiment.world)
        try:
            context = self.context(experiment)
        except DearError as error:
            return error
        check_methods(experiment, context, [*datasets.values()])
        return None

    def resolve(self, experiment: Experiment, run: Run) -> tuple[RunContext, ResolvedRun]:
        """A run of an experiment with all its settings, and what it shares with others. Raises DearError."""
        datasets = [self.load(experiment, name, run.dataset) for name in (run.dataset, *run.targets)]
        context = self.context(experiment)
        resolved = context.resolve(experiment.protocol, datasets, run.setup, seed=run.seed, shots=run.shots)
        return context, resolved

    def prepare(self, experiment: Experiment, run: Run) -> tuple[RunContext, ResolvedRun]:
        """The arguments of `run_one` for a run of an experiment. Sets the number of threads of this process
        for it.
        """
        context, resolved = self.resolve(experiment, run)
        # A data set keeps pictures in memory: those of other runs are loaded again when their turn comes.
        names = (run.dataset, *run.targets)
        self._datasets = {key: dataset for key, dataset in self._datasets.items() if key[0] in names}
        if context.clip.image.projection.device.type == "cpu":
            set_threads(context.clip, context.teacher_context(resolved).clip)
        return context, resolved

    def make(
        self, experiment: Experiment, run: Run, progress: RunProgress = silent
    ) -> "RunResult | DearError":
        """Make a run, or return the error that it fails with. Only the steps of its training are told."""

        def tell(name: str, step: TrainingStep | None) -> None:
            if step is not None:
                progress(name, step)

        try:
            with warnings.catch_warnings(record=True) as notes:
                context, resolved = self.prepare(experiment, run)
                record = run_one(context, resolved, out=experiment.out, progress=tell)
        except DearError as error:
            return error
        except (MemoryError, RuntimeError) as error:
            if not of_memory(error):
                raise
            return SettingsError(
                f"there is not enough memory ({first_line(error)}): take a smaller model or batch, or fewer "
                "classes."
            )
        path = resolved.file(experiment.out)
        predictions = path.with_suffix(".npz")
        return RunResult(
            record,
            path,
            predictions.read_bytes() if predictions.exists() else None,
            [(str(note.message), note.category, note.filename, note.lineno) for note in notes],
        )

    def load(self, experiment: Experiment, name: str, source: str) -> Dataset:
        """A data set by name, without copies of the images of the source, which is trained on. One that is
        not the source and has no split is tested on as a whole.
        """
        settings = experiment.dataset
        if (name, source, settings) not in self._datasets:
            used = settings if name == source else replace(settings, test_share=1.0)
            loaded = load_dataset(name, used).require_names()
            trained_on = loaded if name == source else self.load(experiment, source, source)
            self._datasets[name, source, settings] = leave_out_copies(loaded, trained_on)
        return self._datasets[name, source, settings]

    def load_all(self, experiment: Experiment) -> dict[str, Dataset]:
        """The data sets of an experiment by name, the source of a transfer last. Raises DearError if one
        is unavailable.
        """
        source = experiment.protocol.trained_on
        names = experiment.data if source is None else (*experiment.data, source)
        return {name: self.load(experiment, name, source or name) for name in names}

    def context(self, experiment: Experiment) -> RunContext:
        """The context of an experiment; experiments with the same model share the model and all caches."""
        if self._context is not None and self._context[0] is experiment:
            return self._context[1]
        model = experiment.backbone, experiment.roles
        if model not in self._models:
            named_by, (name, weights) = experiment.named_by, experiment.backbone
            weights = named_weights(name, weights, named_by)
            clip = load_clip(name, weights, device=self.device, named_by=named_by)
            self._models[model] = RunContext(clip, named_by=named_by)
        shared = self._models[model]
        experiment.dataset.require_short_side(shared.clip.image_size)
        for setup in experiment.methods:
            check_towers(known_method(setup.method), shared.clip)
        with_roles = [setup for setup in experiment.methods if setup.declared.needs_roles]
        if shared.roles is None and with_roles:
            optional = experiment.roles is None and all(setup.can_lack_roles for setup in with_roles)
            clip = shared.clip
            shared.roles = find_role_table(clip) if optional else role_table(clip, experiment.roles)
        context = replace(shared, training=experiment.train, select=experiment.select, device=self.target)
        self._context = experiment, context
        return context


def check_data(experiment: Experiment, datasets: Mapping[str, Dataset]) -> None:
    """Raise DataError for data sets that the protocol cannot run on, and for two whose records could not be
    told apart.
    """
    protocol, source = experiment.protocol, experiment.protocol.trained_on
    trained_on = datasets if source is None else {source: datasets[source]}  # each has its own records
    if clash := _find_clash(datasets, lambda dataset: (dataset.name, dataset.identity)):
        raise DataError(
            f"{' and '.join(clash)} are both called {datasets[clash[0]].name}, by which reports tell data "
            "sets apart: rename one of them."
        )
    if clash := _find_clash(trained_on, lambda data: (data.identity, data.name)):
        raise DataError(
            f"{' and '.join(clash)} are the same data set, image by image, under two names: give one of them."
        )
    targets = [] if source is None else [datasets[name] for name in experiment.data]
    for dataset in trained_on.values():
        protocol.check_data(dataset, targets)
        if any(setup.declared.trains for setup in experiment.methods):
            classes = protocol.training_classes(len(dataset.classnames))
            draw_few(dataset, max(experiment.shots), experiment.seeds[0], classes)
            if experiment.select == "val":
                validation_images(dataset, classes)


def _find_clash(
    datasets: Mapping[str, Dataset], facts: Callable[[Dataset], tuple[str, str]]
) -> tuple[str, str] | None:
    """The names of two data sets for which the first of two ``facts`` is the same, and the second is not."""
    seen = dict[str, tuple[str, str]]()
    for name, dataset in datasets.items():
        same, different = facts(dataset)
        other_name, other = seen.setdefault(same, (name, different))
        if different != other:
            return other_name, name
    return None


def check_methods(experiment: Experiment, context: RunContext, datasets: Sequence[Dataset]) -> None:
    """Raise DearError for settings of a method that do not suit the backbone or the classes. Each method is
    built for each data set that is trained on (the last one, if the protocol has a source), and set to the
    longest class name in the longest template.
    """
    protocol, seed, shots = experiment.protocol, experiment.seeds[0], max(experiment.shots)
    names = [(name, dataset) for dataset in datasets for name in dataset.classnames]
    longest, dataset = names[find_longest_name(context.clip, [name for name, _ in names])]
    prompts = [fill(template, [longest])[0] for template in dataset.templates]
    template = dataset.templates[find_longest_name(context.clip, prompts)]
    trained_on = datasets if protocol.trained_on is None else datasets[-1:]
    for dataset in datasets:
        texts = [fill(template, dataset.classnames) for template in dataset.templates]
        context.clip.check_prompts(dataset.classnames, texts)
    for setup in experiment.methods:
        runs = [context.resolve(protocol, [dataset], setup, seed=seed, shots=shots) for dataset in trained_on]
        for run in {run.settings: run for run in runs}.values():  # most are the same for all data sets
            check_prompts(context, run, longest, [template])
        for run in runs:
            class_names = run.source.classnames
            tested_on = class_names if protocol.trained_on is None else [name for name, _ in names]
            run.settings.check_classes(
                [class_names[label] for label in protocol.training_classes(len(class_names))], tested_on
            )


def run_one(
    context: RunContext,
    run: ResolvedRun,
    *,
    out: Path | None = None,
    progress: RunProgress = silent,
) -> dict[str, Any]:
    """Make a run and write its record and its predictions (.npz) into ``out``, or read the existing record.

    An interrupted run resumes from its checkpoint in ``out``/unfinished; a damaged one is set aside, and
    the run starts over. A run that was made in this context for another folder is copied.
    Raises DataError for data sets that the protocol cannot run on.
    """
    path, checkpoint = (None, None) if out is None else (run.file(out), run.file(out / UNFINISHED, ".pt"))
    if path is not None and path.exists():
        record = read_record(path, key=run.key, variant=run.setup.variant)
    elif run.key in context.records:
        record, earlier = context.records[run.key]
        record = record | {"variant": run.setup.variant}
        if path is not None:
            if earlier is not None and earlier.with_suffix(".npz").exists():
                with output_file(path.with_suffix(".npz")) as file:
                    file.write(earlier.with_suffix(".npz").read_bytes())
            write_json(path, record)
    else:
        run.protocol.check_method(run.setup.declared)
        run.protocol.check_data(run.source, run.targets)
        context.cache.begin(run.source.identity)
        trial = Trial(
            context,
            run,
            checkpoint,
            partial(progress, run.name),
            shares_training=run.protocol.trained_on is not None,
        )
        record = run_record(trial, run.protocol.run(trial))
        if path is not None:
            if trial.predictions:
                save_predictions(path.with_suffix(".npz"), trial.predictions)
            write_json(path, record)
    if checkpoint is not None:  # also of a run that was killed after its record
        remove_checkpoints(checkpoint)
    context.records[run.key] = record, path
    progress(run.name, None)
    return record


def run_all(
    clip: Clip,
    datasets: Iterable[Dataset],
    methods: Sequence[MethodSetup],
    *,
    protocol: Protocol | None = None,
    seeds: Sequence[int] = (1,),
    shots: int = 16,
    roles: RoleTable | None = None,
    training: Mapping[str, Any] | None = None,
    out: Path | None = None,
    progress: RunProgress = silent,
) -> list[dict[str, Any]]:
    """Run a protocol (base-to-novel if None) for every data set, seed and method; returns the records in that
    order.

    With ``out`` each record is written there at once, and a run whose record already exists is read instead
    of repeated. Warns of the tiny CLIP on photographs. ``training`` overrides what each method is published
    with.
    """
    if out is not None:
        make_folder(out)
    context = RunContext(clip, roles, training or {})
    protocol, datasets = protocol or BaseToNovel(), [leave_out_copies(data, data) for data in datasets]
    warn_of_toy(clip.identity.model, world=all(dataset.world for dataset in datasets))
    return [
        run_one(
            context,
            context.resolve(protocol, [dataset], setup, seed=seed, shots=shots),
            out=out,
            progress=progress,
        )
        for dataset in datasets
        for seed in seeds
        for setup in methods
    ]
