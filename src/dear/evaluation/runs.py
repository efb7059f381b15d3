"""Runs: what is checked before any of them, how one is made and recorded, and many in a Python program. None
is repeated, and one that was interrupted resumes.
"""

import traceback
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import chain, product
from pathlib import Path
from typing import Any, NamedTuple

from safetensors.torch import save as save_tensors

from dear.backbone.clip import Clip, fill
from dear.backbone.device import device_precision, set_threads
from dear.backbone.names import BackboneName, warn_of_toy
from dear.data.dataset import Dataset
from dear.data.fewshot import draw_few
from dear.data.image_check import leave_out_copies
from dear.errors import DataError, DearError, SettingsError, UnknownNameError, first_line, of_memory
from dear.evaluation.experiment import Experiment
from dear.evaluation.predictions import predictions_file
from dear.evaluation.protocols.base import Protocol
from dear.evaluation.protocols.base_to_novel import BaseToNovel
from dear.evaluation.records import PREDICTIONS, WEIGHTS, find_record
from dear.evaluation.resolve import MethodSetup, ResolvedRun
from dear.evaluation.session import NOTHING, Session
from dear.evaluation.trial import (
    Trial,
    check_prompts,
    find_longest_name,
    remove_checkpoints,
    run_record,
    validation_images,
)
from dear.methods.registry import METHODS, PATH, check_towers, register
from dear.progress import OnStep, RunProgress, silent
from dear.roles.table import RoleTable
from dear.writing import UNFINISHED, make_folder, output_file, write_json

Needed = str | BackboneName | MethodSetup
"""What can be missing for a run: a data set, the backbone, the teacher or the roles of a method."""


def check_experiment(session: Session, experiment: Experiment) -> dict[Needed, DearError]:
    """Check an experiment before anything is computed. Returns the errors of data sets, weights and roles
    that are missing: they may be there later. Raises DearError for anything else.
    """
    source, missing = experiment.protocol.trained_on, dict[Needed, DearError]()
    settings_of = {setup: experiment.settings_of(setup) for setup in experiment.methods}
    datasets = dict[str, Dataset]()
    for settings in chain.from_iterable(settings_of.values()):
        device_precision(settings.training.precision, session.target)
    for name in experiment.data if source is None else (source, *experiment.data):
        beside = source if source in datasets else name
        try:
            datasets[name] = session.dataset(name, experiment.dataset, beside)
        except UnknownNameError:
            raise
        except DearError as error:  # for example a benchmark that is not downloaded yet
            missing[name] = error
    if not missing:
        check_data(experiment, datasets)
    warn_of_toy(experiment.backbone.model, world=experiment.world)
    clip: Clip | None = None
    try:
        clip = session.clip(*experiment.backbone, experiment.named_by)
        experiment.dataset.require_short_side(clip.image_size)
    except DearError as error:
        missing[experiment.backbone] = error
    for setup in experiment.methods:
        try:
            for model, pretrained in {each.method.teacher_backbone() for each in settings_of[setup]}:
                if model:
                    session.clip(model, pretrained, experiment.named_by)
            if clip is not None:
                check_towers(setup.method, clip)
                session.roles(clip, setup, experiment.roles)
        except DearError as error:
            missing[setup] = error
    if clip is not None and not missing:
        trained_on = [*datasets.values()] if source is None else [datasets[source]]
        check_methods(session, experiment, clip, [*datasets.values()], trained_on)
    return missing


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


def check_methods(
    session: Session,
    experiment: Experiment,
    clip: Clip,
    datasets: Sequence[Dataset],
    trained_on: Sequence[Dataset],
) -> None:
    """Raise DearError for settings of a method that do not suit the backbone or the classes. Each method is
    built for each data set that is trained on, and set to the longest class name in the longest template.
    """
    protocol, seed, shots = experiment.protocol, experiment.seeds[0], max(experiment.shots)
    names = [(name, dataset) for dataset in datasets for name in dataset.classnames]
    longest, dataset = names[find_longest_name(clip, [name for name, _ in names])]
    prompts = [fill(template, [longest])[0] for template in dataset.templates]
    template = dataset.templates[find_longest_name(clip, prompts)]
    for dataset in datasets:
        texts = [fill(template, dataset.classnames) for template in dataset.templates]
        clip.check_prompts(dataset.classnames, texts)
    for setup in experiment.methods:
        resolve_on = partial(
            session.resolve,
            roles=session.roles(clip, setup, experiment.roles),
            train=experiment.train,
            select=experiment.select,
            named_by=experiment.named_by,
        )
        runs = [resolve_on(clip, protocol, [data], setup, seed=seed, shots=shots) for data in trained_on]
        for run in {run.settings: run for run in runs}.values():  # most are the same for all data sets
            check_prompts(session, run, longest, [template])
        for run in runs:
            class_names = run.source.classnames
            tested_on = class_names if protocol.trained_on is None else [name for name, _ in names]
            run.settings.check_classes(
                [class_names[label] for label in protocol.training_classes(len(class_names))], tested_on
            )


class RunResult(NamedTuple):
    """What comes of a run: its record, the warnings that were issued, and from another machine the contents
    of the files beside its record, by their endings.
    """

    record: dict[str, Any]
    notes: Sequence[tuple[Any, ...]] = ()
    files: Mapping[str, bytes] | None = None


class CodeError(DearError):
    """An exception that is no `DearError`: a bug in the code of a method, or in this package."""

    def __init__(self, error: Exception) -> None:
        *_, frame = traceback.extract_tb(error.__traceback__)
        super().__init__(
            f"a bug raised {type(error).__name__} in {frame.filename}, line {frame.lineno} "
            f"({first_line(error)}): correct the code there; the traceback is on stderr."
        )


def make_run(session: Session, run: Experiment, on_step: OnStep = silent) -> RunResult | DearError:
    """Make a single run of an experiment, or return the error that it fails with; the traceback of a bug goes
    to stderr. Other data sets leave the memory, and the number of threads of this process is set.
    """
    if (name := run.methods[0].method) not in METHODS and PATH.fullmatch(name):
        register(name)  # as in the process that sent the run
    try:
        with warnings.catch_warnings(record=True) as notes:
            resolved = session.resolve_run(run)
            session.release_datasets(but=(*run.data, run.protocol.trained_on or ""))
            if session.device.type == "cpu":
                set_threads(*(each.clip for each in (resolved, resolved.teacher) if each is not None))
            record = run_one(session, resolved, out=run.out, keep_weights=run.keep_weights, on_step=on_step)
    except DearError as error:
        return error
    except Exception as error:
        if of_memory(error):
            return SettingsError(
                f"there is not enough memory ({first_line(error)}): take a smaller model or batch, or fewer "
                "classes."
            )
        traceback.print_exc()
        return CodeError(error)
    return RunResult(
        record, [(str(note.message), note.category, note.filename, note.lineno) for note in notes]
    )


def run_one(
    session: Session,
    run: ResolvedRun,
    *,
    out: Path | None = None,
    keep_weights: bool = False,
    on_step: OnStep = silent,
) -> dict[str, Any]:
    """Make a run and write its record and its predictions (.npz) into ``out``, or read the existing record.
    With ``keep_weights`` the trained tensors (.safetensors) are beside it too; a record without them is
    replaced.

    An interrupted run resumes from its checkpoint in ``out``/unfinished; a damaged one is set aside, and
    the run starts over. A run that was made in this session for another folder is copied.
    Raises DataError for data sets that the protocol cannot run on.
    """
    path, checkpoint = (None, None) if out is None else (run.file(out), run.file(out / UNFINISHED, ".pt"))
    expected = {"key": run.key, "variant": run.setup.variant}
    record, earlier = session.records.get(run.key, (None, None))
    if path is not None and (existing := find_record(path, with_weights=keep_weights, **expected)):
        record = existing
    elif record is not None and (record.get("adapter") or not keep_weights):
        record = record | {"variant": run.setup.variant}
        if path is not None:
            write_run(path, record, {} if earlier is None else files_beside(earlier))
    else:
        run.protocol.check_method(run.setup.declared)
        run.protocol.check_data(run.source, run.targets)
        session.cache.begin(run.source.identity)
        shares_training = run.protocol.trained_on is not None
        trial = Trial(session, run, checkpoint, on_step, shares_training=shares_training)
        results, tensors = run.protocol.run(trial), trial.trained_tensors() if keep_weights else None
        record, files = run_record(trial, results, tensors), dict[str, bytes]()
        if trial.predictions:
            files[PREDICTIONS] = predictions_file(trial.predictions)
        if tensors is not None:
            files[WEIGHTS] = save_tensors(tensors, metadata={"format": "pt"})
        if path is not None:
            write_run(path, record, files)
    if checkpoint is not None:  # also of a run that was killed after its record
        remove_checkpoints(checkpoint)
    session.records[run.key] = record, path
    return record


def write_run(path: Path, record: Mapping[str, Any], files: Mapping[str, bytes]) -> None:
    """Write a record, which makes the run complete, and before it the files beside it, by their endings.
    Raises OutputError.
    """
    for ending, content in files.items():
        with output_file(path.with_suffix(ending)) as file:
            file.write(content)
    write_json(path, record)


def files_beside(path: Path) -> dict[str, bytes]:
    """The contents of the files beside a record, by their endings."""
    files = {ending: path.with_suffix(ending) for ending in (PREDICTIONS, WEIGHTS)}
    return {ending: file.read_bytes() for ending, file in files.items() if file.exists()}


def run_all(
    clip: Clip,
    datasets: Iterable[Dataset],
    methods: Sequence[MethodSetup],
    *,
    protocol: Protocol | None = None,
    seeds: Sequence[int] = (1,),
    shots: int = 16,
    roles: RoleTable | None = None,
    train: Mapping[str, Any] = NOTHING,
    out: Path | None = None,
    keep_weights: bool = False,
    progress: RunProgress = silent,
) -> list[dict[str, Any]]:
    """Run a protocol (base-to-novel if None) for every data set, seed and method; returns the records in that
    order.

    With ``out`` each record is written there at once, and a run whose record already exists is read instead
    of repeated; ``keep_weights`` is as in `run_one`. Warns of the tiny CLIP on photographs. ``train``
    overrides what each method is published with.
    """
    if out is not None:
        make_folder(out)
    elif keep_weights:
        raise SettingsError("keep_weights needs a folder to keep them in: give out too.")
    session = Session(clip.image.projection.device)
    protocol = protocol or BaseToNovel()
    datasets = [leave_out_copies(data.require_single_labels(), data) for data in datasets]
    warn_of_toy(clip.identity.model, world=all(dataset.world for dataset in datasets))
    tables = {setup: session.roles(clip, setup, None) if setup.roles else roles for setup in methods}
    resolve_on = partial(session.resolve, clip, protocol, shots=shots, train=train)
    records = []
    for dataset, seed, setup in product(datasets, seeds, methods):
        run = resolve_on([dataset], setup, seed=seed, roles=tables[setup])
        told = partial(progress, run.name)
        records.append(run_one(session, run, out=out, keep_weights=keep_weights, on_step=told))
        progress(run.name, None)
    return records
