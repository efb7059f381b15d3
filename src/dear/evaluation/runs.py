"""Runs: what is checked before any of them, and how one is made and recorded. None is repeated, and one
that was interrupted resumes.
"""

import traceback
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

from safetensors.torch import save as save_tensors

from dear.backbone.clip import fill
from dear.data.dataset import Dataset
from dear.data.fewshot import draw_few
from dear.errors import CodeError, DataError, DearError, SettingsError, first_line, of_memory
from dear.evaluation.predictions import predictions_file
from dear.evaluation.records import PREDICTIONS, WEIGHTS, find_record
from dear.evaluation.resolve import MethodSetup, ResolvedRun
from dear.evaluation.run_record import run_record
from dear.evaluation.session import Session
from dear.evaluation.trial import (
    Trial,
    check_prompts,
    find_longest_name,
    remove_checkpoints,
    validation_images,
)
from dear.evaluation.tuning import train_candidates
from dear.methods.declaration import MethodSettings
from dear.methods.registry import METHODS
from dear.progress import OnStep, silent
from dear.writing import UNFINISHED, output_file, write_json

BrokenMethods = dict[tuple[MethodSetup, MethodSettings], CodeError]
"""The bugs in the code of methods, by setup and settings of their runs."""


def check_runs(
    session: Session, runs: Sequence[ResolvedRun], datasets: Mapping[str, Dataset]
) -> BrokenMethods:
    """Check the runs of an experiment, on ``datasets`` by the names that the user gave, before anything is
    computed. Raises DearError for data sets that the protocol cannot run on, or whose records could not be
    told apart, and for settings of a method that do not suit the backbone or the classes. Returns the bugs
    of methods that show in this.
    """
    if not runs:
        return {}
    check_names(datasets, trained_on_each=runs[0].protocol.trained_on is None)
    by_demands = sorted(runs, key=lambda run: (run.setup.declared.trains is not None, run.shots))
    for run in {run.source.identity: run for run in by_demands}.values():
        run.protocol.check_data(run.source, run.targets)
        if run.setup.declared.trains:
            classes = run.protocol.training_classes(len(run.source.classnames))
            draw_few(run.source, run.shots, run.seed, classes)
            if run.select == "val":
                validation_images(run.source, classes)
    return check_methods(session, [training for run in runs for training in run.trainings])


def check_names(datasets: Mapping[str, Dataset], *, trained_on_each: bool) -> None:
    """Raise DataError for two data sets, by the names that the user gave, whose records could not be told
    apart: those of each data set if it is trained on.
    """
    for (name, data), (other_name, other) in combinations(datasets.items(), 2):
        if data.name == other.name and data.identity != other.identity:
            raise DataError(
                f"{name} and {other_name} are both called {data.name}, by which reports tell data sets "
                "apart: rename one of them."
            )
        if trained_on_each and data.identity == other.identity and data.name != other.name:
            raise DataError(
                f"{name} and {other_name} are the same data set, image by image, under two names: give one "
                "of them."
            )


def check_methods(session: Session, runs: Sequence[ResolvedRun]) -> BrokenMethods:
    """Raise DearError for settings of a method that do not suit the backbone or the classes. Each method is
    built with each of its settings, and set to the longest class name in the longest template. Returns the
    bugs that show in this; each traceback goes to stderr.
    """
    broken = BrokenMethods()

    def check(run: ResolvedRun, part: Callable[[], None]) -> None:
        if (run.setup, run.settings) in broken:
            return
        try:
            part()
        except Exception as error:
            if not isinstance(failure := run_error(error, run.setup), CodeError):
                raise failure from error.__cause__
            broken[run.setup, run.settings] = failure

    clip, datasets = runs[0].clip, {data.identity: data for run in runs for data in run.datasets}.values()
    names = [(name, dataset) for dataset in datasets for name in dataset.classnames]
    longest, dataset = names[find_longest_name(clip, [name for name, _ in names])]
    prompts = [fill(template, [longest])[0] for template in dataset.templates]
    template = dataset.templates[find_longest_name(clip, prompts)]
    for dataset in datasets:
        texts = [fill(template, dataset.classnames) for template in dataset.templates]
        clip.check_prompts(dataset.classnames, texts)
    for run in {(run.setup, run.settings): run for run in runs}.values():  # most are the same for all data
        check(run, partial(check_prompts, session, run, longest, [template]))
    for run in {(run.setup, run.source.identity): run for run in runs}.values():
        class_names = run.source.classnames
        tested_on = class_names if run.protocol.trained_on is None else [name for name, _ in names]
        trained_on = run.protocol.training_classes(len(class_names))
        trained_names = [class_names[label] for label in trained_on]
        check(run, partial(run.settings.check_classes, trained_names, tested_on))
    return broken


class RunResult(NamedTuple):
    """What comes of a run: its record, the warnings that were issued, and from another machine the contents
    of the files beside its record, by their endings.
    """

    record: dict[str, Any]
    notes: Sequence[tuple[Any, ...]] = ()
    files: Mapping[str, bytes] | None = None


def run_error(error: Exception, setup: MethodSetup) -> DearError:
    """What a run of a method fails with, for an exception. That of a bug names the innermost line of the
    method's own module, if it is in the traceback, which goes to stderr.
    """
    if isinstance(error, DearError):
        return error
    if of_memory(error):
        return SettingsError(
            f"there is not enough memory ({first_line(error)}): take a smaller model or batch, or fewer "
            "classes."
        )
    traceback.print_exception(error)
    frames, home = [*traceback.walk_tb(error.__traceback__)], METHODS[setup.method].home
    own = [(frame, line) for frame, line in frames if frame.f_globals.get("__name__") == home]
    frame, line = (own or frames)[-1]
    return CodeError(
        f"a bug raised {type(error).__name__} in {frame.f_code.co_filename}, line {line} "
        f"({first_line(error)}): correct the code there; the traceback is on stderr."
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
        classes = run.protocol.training_classes(len(run.source.classnames))
        shares = run.protocol.trained_on is not None
        if run.candidates:
            trial = train_candidates(session, run, classes, checkpoint, on_step, shares_training=shares)
        else:
            trial = Trial(session, run, checkpoint, on_step, shares_training=shares)
            trial.train(classes)
        results, tensors = run.protocol.test(trial), trial.trained_tensors() if keep_weights else None
        record, files = run_record(run, trial, results, tensors), dict[str, bytes]()
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
