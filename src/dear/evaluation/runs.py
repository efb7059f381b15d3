"""Sequential runs: each leaves a record, none is repeated, and an interrupted one resumes."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import torch
from lightning_fabric import Fabric

from dear.backbone.choice import BackboneName, warn_of_toy
from dear.backbone.clip import Clip, fill
from dear.backbone.device import set_threads
from dear.backbone.load import load_clip, named_weights
from dear.data.dataset import Dataset
from dear.data.fewshot import draw_few
from dear.data.image_check import leave_out_copies
from dear.data.loading import load_dataset
from dear.errors import DataError
from dear.evaluation.experiment import Experiment, Run
from dear.evaluation.plan import Plan
from dear.evaluation.predictions import save_predictions
from dear.evaluation.protocols.base import Protocol
from dear.evaluation.protocols.base_to_novel import BaseToNovel
from dear.evaluation.records import make_folder, read_record
from dear.evaluation.resolve import ResolvedRun, Training
from dear.evaluation.run_context import RunContext
from dear.evaluation.trial import (
    Trial,
    check_prompts,
    find_longest_name,
    remove_checkpoints,
    require_files,
    run_record,
    validation_images,
)
from dear.methods.registry import check_towers, known_method
from dear.progress import TrainingStep
from dear.roles.packaged import find_role_table, role_table
from dear.roles.table import RoleTable
from dear.training.checkpoint import CheckpointError, set_aside
from dear.training.settings import TrainOptions
from dear.training.trunks import origin, view_cache
from dear.writing import UNFINISHED, output_file, write_json

RunProgress = Callable[[str, TrainingStep | None], None]
"""Called with the name of a run after each step of its training, and with None at its end."""
Load = Callable[[str], Dataset]


def silent(_run: str, _step: TrainingStep | None) -> None:
    """Ignore progress."""


class Runner:
    """Makes runs one after the other, keeping models, caches and data sets between them."""

    def __init__(self, device: str = "auto", fabric: Fabric | None = None) -> None:
        self.device, self.fabric = device, fabric
        self._load = lru_cache(maxsize=2)(load_dataset)
        self._leave_out_copies = lru_cache(maxsize=2)(leave_out_copies)
        self._contexts: dict[tuple[BackboneName, Path | None], RunContext] = {}
        self._context: tuple[Experiment, RunContext] | None = None
        self._datasets: tuple[Experiment, tuple[str, ...], list[Dataset]] | None = None
        self._records: dict[str, tuple[dict[str, Any], Path | None]] = {}

    def context(self, experiment: Experiment) -> RunContext:
        """The context of an experiment; experiments with the same model share the model and all caches.
        It is the same for all runs, of which there may be thousands.
        """
        if self._context is None or self._context[0] is not experiment:
            self._context = experiment, self._make_context(experiment)
        return self._context[1]

    def _make_context(self, experiment: Experiment) -> RunContext:
        model = experiment.backbone, experiment.roles
        if model not in self._contexts:
            named_by = f"the recipe {experiment.recipe}" if experiment.recipe else ""
            name, weights = experiment.backbone
            weights = named_weights(name, weights, named_by)
            clip = load_clip(name, weights, device=self.device, named_by=named_by)
            self._contexts[model] = RunContext(clip, fabric=self.fabric, named_by=named_by)
        shared = self._contexts[model]
        experiment.dataset.require_short_side(shared.clip.image_size)
        for plan in experiment.plans:
            check_towers(known_method(plan.method), shared.clip)
        with_roles = [plan for plan in experiment.plans if plan.needs_roles]
        if shared.roles is None and with_roles:
            optional = experiment.roles is None and all(plan.can_lack_roles for plan in with_roles)
            clip = shared.clip
            shared.roles = find_role_table(clip) if optional else role_table(clip, experiment.roles)
        views = view_cache(experiment.train, experiment.dataset.cache_folder())
        return replace(shared, training=experiment.train, select=experiment.select, views=views)

    def load(self, experiment: Experiment) -> Load:
        """The function that loads the data sets that an experiment trains on, by name."""
        return partial(self._load, settings=experiment.dataset)

    def load_target(self, experiment: Experiment) -> Load:
        """The same for data sets that it only tests on: all images, where a data set has no split."""
        return partial(self._load, settings=replace(experiment.dataset, test_share=1.0))

    def check(self, experiment: Experiment) -> None:
        """Check an experiment before anything is computed. Raises DearError."""
        datasets = self.load_all(experiment)
        warn_of_toy(experiment.backbone.model, world=experiment.world)
        context = self.context(experiment)
        check_data(experiment, datasets)
        check_methods(experiment, context, [*datasets.values()])

    def load_all(self, experiment: Experiment) -> dict[str, Dataset]:
        """The data sets of an experiment by name. Raises DearError for one that is unavailable."""
        load, source = self.load(experiment), experiment.protocol.trained_on
        if source is None:
            return {name: self._leave_out_copies(load(name), load(name)) for name in experiment.data}
        tested, trained_on = self.load_target(experiment), load(source)
        datasets = {**{name: tested(name) for name in experiment.data}, source: trained_on}
        return {name: self._leave_out_copies(dataset, trained_on) for name, dataset in datasets.items()}

    def resolve(self, experiment: Experiment, run: Run) -> ResolvedRun:
        """A run of an experiment with everything that its results depend on."""
        datasets, context = self.datasets(experiment, run), self.context(experiment)
        return context.resolve(run.protocol, datasets, run.plan, seed=run.seed, shots=run.shots)

    def datasets(self, experiment: Experiment, run: Run) -> list[Dataset]:
        """The data sets of a run, the one that is trained on first; loaded once for the runs in a row that
        share them.
        """
        names, loaded = (run.dataset, *run.targets), self._datasets
        if loaded is None or loaded[0] is not experiment or loaded[1] != names:
            source, target = self.load(experiment)(names[0]), self.load_target(experiment)
            datasets = [source, *map(target, names[1:])]
            datasets = [self._leave_out_copies(dataset, source) for dataset in datasets]
            loaded = self._datasets = experiment, names, datasets
        return loaded[2]

    def existing(self, experiment: Experiment, run: Run) -> dict[str, Any] | None:
        """The record of a run that has been made; None if there is none."""
        resolved = self.resolve(experiment, run)
        path = resolved.file(experiment.out)
        return read_record(path, key=resolved.key, variant=run.plan.variant) if path.exists() else None

    def prepared(self, experiment: Experiment, run: Run) -> dict[str, Any]:
        """The arguments of `run_one` for a run of an experiment, whose record is copied if another experiment
        has it. The process uses as many threads from now on as the run needs.
        """
        context, resolved = self.context(experiment), self.resolve(experiment, run)
        if context.clip.image.projection.device.type == "cpu":
            set_threads(context.clip, context.of_teacher(resolved).clip)
        return {
            "context": context,
            "run": resolved,
            "out": experiment.out,
            "records": self._records,
            "start_over": experiment.start_over,
        }


def check_data(experiment: Experiment, datasets: Mapping[str, Dataset]) -> None:
    """Check that the data sets meet an experiment's requirements, and that their records can be told apart.
    Raises DataError.
    """
    protocol, source = experiment.protocol, experiment.protocol.trained_on
    locations, identities = dict[str, tuple[str, str]](), dict[str, tuple[str, str]]()
    for name in experiment.data if source is None else [source, *experiment.data]:
        dataset = datasets[name]
        earlier, identity = identities.setdefault(dataset.name, (name, dataset.identity))
        if identity != dataset.identity:
            raise DataError(
                f"{earlier} and {name} are both called {dataset.name}, by which reports tell data sets "
                "apart: rename one of them."
            )
    for name in experiment.data if source is None else [source]:  # each has its own records
        location, _ = origin(datasets[name].test, torch.empty(0, dtype=torch.int64))
        earlier, its_location = locations.setdefault(datasets[name].identity, (name, location))
        if location != its_location:
            raise DataError(
                f"{earlier} and {name} have the same paths, labels, sizes of files and class names, by which "
                "records tell data sets apart: run each by itself, with its own --out."
            )
        targets = [] if source is None else [datasets[target] for target in experiment.data]
        protocol.check_data(datasets[name], targets)
        if any(plan.trains for plan in experiment.plans):
            classes = protocol.training_classes(len(datasets[name].classnames))
            draw_few(datasets[name], max(experiment.shots), experiment.seeds[0], classes)
            if experiment.select == "val":
                validation_images(datasets[name], classes)


def check_methods(experiment: Experiment, context: RunContext, datasets: Sequence[Dataset]) -> None:
    """Check that the methods' settings, on each data set that is trained on, suit the backbone, the classes
    and the longest class name in the longest template. The source, if there is one, is the last data set.
    Raises DearError.
    """
    names = [(name, dataset) for dataset in datasets for name in dataset.classnames]
    longest, dataset = names[find_longest_name(context.clip, [name for name, _ in names])]
    prompts = [fill(template, [longest])[0] for template in dataset.templates]
    template = dataset.templates[find_longest_name(context.clip, prompts)]
    trained_on = datasets if experiment.protocol.trained_on is None else datasets[-1:]
    for part in datasets:
        texts = [fill(template, part.classnames) for template in part.templates]
        context.clip.check_prompts(part.classnames, texts)
    for plan in experiment.plans:
        protocol, seed, shots = experiment.protocol, experiment.seeds[0], max(experiment.shots)
        runs = [context.resolve(protocol, [dataset], plan, seed=seed, shots=shots) for dataset in trained_on]
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
    records: dict[str, tuple[dict[str, Any], Path | None]] | None = None,
    start_over: bool = False,
    progress: RunProgress = silent,
) -> dict[str, Any]:
    """Make a run and write its record and its predictions (.npz) into ``out``, or read the existing record.

    An interrupted run resumes from its checkpoint in ``out``/unfinished; with ``start_over`` a damaged
    checkpoint is set aside and the run starts over. ``records`` holds records and their files by the keys of
    their runs: a run in it is copied. Raises DataError for data sets that the protocol cannot run on.
    """
    records = {} if records is None else records
    path = None if out is None else run.file(out)
    checkpoint = None if out is None else run.file(out / UNFINISHED, ".pt")
    if checkpoint is not None:
        require_files(checkpoint)
    if path is not None and path.exists():
        record = read_record(path, key=run.key, variant=run.plan.variant)
    else:
        record, earlier = records.get(run.key, ({}, None))
        record, predictions = record | {"variant": run.plan.variant}, {}
        if run.key not in records:
            run.protocol.check_plan(run.plan)
            run.protocol.check_data(run.source, run.targets)
            context.cache.begin(run.source.identity)
            share = context.keep or run.protocol.trained_on is not None
            of_run = partial(progress, run.name)
            begin = partial(Trial, context, run, checkpoint, of_run, label=run.name, share=share)
            trial = begin()
            try:
                results = run.protocol.run(trial)
            except CheckpointError as error:
                if not start_over:
                    raise
                if context.main:
                    set_aside(error.path)
                if context.fabric is not None:
                    context.fabric.barrier()
                trial = begin()
                results = run.protocol.run(trial)
            record, predictions = run_record(trial, results), trial.predictions
        if path is not None and context.main:
            if predictions:
                save_predictions(path.with_suffix(".npz"), predictions)
            elif earlier is not None and earlier.with_suffix(".npz").exists():
                with output_file(path.with_suffix(".npz")) as file:
                    file.write(earlier.with_suffix(".npz").read_bytes())
            write_json(path, record)
    if checkpoint is not None and context.main:  # even with a record: a process may have ended in between
        remove_checkpoints(checkpoint)
    records[run.key] = record, path
    progress(run.name, None)
    return record


def run_all(
    clip: Clip,
    datasets: Iterable[Dataset],
    plans: Sequence[Plan],
    *,
    protocol: Protocol | None = None,
    seeds: Sequence[int] = (1,),
    shots: int = 16,
    roles: RoleTable | None = None,
    training: Training | None = None,
    out: Path | None = None,
    start_over: bool = False,
    progress: RunProgress = silent,
) -> list[dict[str, Any]]:
    """Run a protocol (base-to-novel if None) for every data set, seed and plan; returns the records in that
    order.

    With ``out`` each record is written there at once, and a run whose record already exists is read instead
    of repeated. Warns of the tiny CLIP on photographs. Where ``training`` has no value, the published one of
    each method is used.
    """
    if out is not None:
        make_folder(out)
    context = RunContext(clip, roles, training or TrainOptions())
    protocol, datasets = protocol or BaseToNovel(), [leave_out_copies(data, data) for data in datasets]
    warn_of_toy(clip.identity.model, world=all(dataset.world for dataset in datasets))
    return [
        run_one(
            context,
            context.resolve(protocol, [dataset], plan, seed=seed, shots=shots),
            out=out,
            start_over=start_over,
            progress=progress,
        )
        for dataset in datasets
        for seed in seeds
        for plan in plans
    ]
