"""Fit an adapter to a data set, and make its bundle, in one call: `fit` calls the functions below it."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dear.adapters.bundle import Bundle
from dear.adapters.calibration import Calibration
from dear.adapters.choose import Choice, choose_method, describe_change
from dear.adapters.facts import Epoch, NameCost, UnlabeledGain
from dear.adapters.fit_plan import FitPlan
from dear.adapters.leftout import LeftOut
from dear.adapters.measure_fit import calibrate_fit, measure_fit
from dear.adapters.prepare import FitImages, add_named, check_run, prepare_data, prepare_run, read_data
from dear.adapters.review import Review, write_review
from dear.adapters.scoring import CrossValidation
from dear.backbone.clip import Clip
from dear.curation.issues import REFUSED_SHARE
from dear.curation.unlabeled import add_unlabeled, read_unlabeled, require_taken
from dear.data.dataset import Dataset, Images
from dear.data.loading import deferred_warnings
from dear.data.settings import DataSettings
from dear.data.sources.class_names import with_spaces
from dear.data.sources.splits import TEST_SHARE
from dear.errors import warn
from dear.evaluation.environment import environment
from dear.evaluation.resolve import ResolvedRun, Select
from dear.evaluation.session import Session
from dear.evaluation.trial import Trial, copy_stored, remove_checkpoints, teacher_facts
from dear.methods.optional import LeavesOut
from dear.progress import OnStep, Progress, TrainingStep
from dear.training.cache import Cache, ReadoutStore
from dear.writing import PART, UNFINISHED


def fit(
    data: Any,
    out: Path | str | None = None,
    *,
    method: str | None = None,
    model: str | None = None,
    pretrained: str | None = None,
    roles: Path | str | None = None,
    shots: int | None = None,
    seed: int = 1,
    settings: Mapping[str, Any] | None = None,
    train: Mapping[str, Any] | None = None,
    select: Select = "last",
    dataset: DataSettings | None = None,
    unlabeled: Any = None,
    add_classes: Sequence[str] = (),
    review: bool = True,
    refuse: float = REFUSED_SHARE,
    precision: float | None = None,
    costs: Mapping[Any, float] | Path | str | None = None,
    per_class: bool = False,
    continue_from: Path | str | None = None,
    overwrite: bool = False,
    device: str = "auto",
    progress: Progress | None = None,
    verbose: bool = True,
    command: str = "",
) -> Bundle:
    """Adapt a backbone to all classes of a data set, and write the bundle to ``out`` if that is not None.
    Nothing is selected on test images. If it is interrupted, the same call continues after the last epoch
    whose state is in ``out``. The features of images stay in the cache folder: neither this call nor another
    fit encodes the same images again, unless the method is trained in steps.

    Args:
        data: A data set, or what `load_dataset` takes: a folder, a file, (images, labels), a data frame, ...
        out: Folder of the bundle.
        method: Name of the method; without one, or with "auto", it is chosen by the training images
            (`choose_method`).
        model, pretrained: The backbone; by default ViT-B-16 with the weights laion2b_s34b_b88k, which the
            hub's client fetches once, and for a task of the Attribute World the tiny CLIP.
        roles: A role table, the name of a packaged one, or "discover" to compute one from the training
            images; if None, the packaged one for the backbone.
        shots: Training images per class; all if None.
        settings, train: Settings of the method, which must then be named, and of training, by name, as in
            ``{"tokens": 4}`` and ``{"epochs": 5}``; the others are the method's published ones.
        select: The epoch that is tested: the last, or the best on validation images.
        dataset: How the data is read.
        unlabeled: Images without labels, as `Predictor.predict` takes them, to learn from too if labeled
            images that are left out gain by it; `dear+` can.
        add_classes: Names of further classes, of which there are no images.
        review: Look for wrong labels and for images that are there twice (`Bundle.review`).
        refuse: Share of images of the classes that may be refused as of none of them; 0 for no such answer.
        precision: The share of decided images that shall be right, as 0.99: the others go to a person.
            What can be promised is shown on images that are left out (`OperatingPoint`).
        costs: What mistakes and a person cost, by which each image is decided (`read_costs`).
        per_class: Whether the precision shall hold for each class that is decided.
        continue_from: Folder of an earlier bundle, whose backbone, names of folders or labels and share of
            test images are the defaults; with "auto" its method stays within one standard error of the best.
        overwrite: Replace a bundle in ``out``.
        progress: Called with (step, done, of); if None, a terminal shows bars with the remaining time.
        verbose: Print `Bundle.verdict`. Notes on the data are UserWarnings, which filters of Python's own
            `warnings` silence.
        command: The command line that the bundle names as its own.

    Returns the bundle. Raises DearError, before training where possible.
    """
    plan = FitPlan(**locals())
    with plan.running() as report:
        fitted = make_fit(plan, report)
        if plan.folder is not None:
            fitted.save(plan.folder)
    if plan.verbose:
        print(fitted.bundle.verdict)
    return fitted.bundle


@dataclass(frozen=True)
class Fitted:
    """A fit that is not written yet.

    Attributes:
        bundle, clip: What was fitted, and the backbone.
        dataset: The data set without test images that the bundle was fitted on.
        tests: All test images.
        crossed: The cross-validation by training images, if it was made.
        review: The review of labels, if it was made.
    """

    plan: FitPlan
    bundle: Bundle
    clip: Clip
    dataset: Dataset
    tests: Images
    crossed: CrossValidation | None
    review: Review | None

    def save(self, folder: Path) -> None:
        """Write the bundle and its review into a folder, and remove from the folder of the plan the
        checkpoints of the training and of fits with other options.
        """
        self.bundle.save_pretrained(folder)
        unfinished, classnames = (self.plan.folder or folder) / UNFINISHED, self.plan.reading.classnames
        for state in unfinished.glob("*.pt"):
            remove_checkpoints(state)
        for part in unfinished.glob(f"*{PART}"):  # of a fit that was killed
            part.unlink(missing_ok=True)
        with suppress(OSError):  # there is none, or one that was set aside
            unfinished.rmdir()
        if self.review is not None:
            issues, model = self.bundle.review or (), self.bundle.model
            write_review(folder, self.review, issues, self.plan.data, model, self.tests, classnames)


def make_fit(plan: FitPlan, report: Progress) -> Fitted:
    """Read the images, choose and train the method, and find out what can be promised. Nothing but
    checkpoints is written.
    """
    names = dict(zip(plan.config.get("keys", ()), plan.config.get("classes", ()), strict=False))
    with deferred_warnings():
        source = read_data(plan.data, plan.reading, plan.shots, names).require_single_labels()
        source = add_named(source, plan.add_classes)
        images = prepare_data(source, plan.setup, plan.shots, plan.seed, plan.select)
        dataset = images.dataset
        if plan.goal is not None and plan.goal.costs is not None:
            plan.goal.costs.check(dataset.classnames)
        if plan.unlabeled is not None:
            require_taken(plan.setup.method)
            images = replace(images, unlabeled=read_unlabeled(plan.unlabeled, dataset, plan.reading))
        readouts = ReadoutStore(plan.reading.cache_folder(), draws_by_content=True)
        session = Session(plan.device, cache=Cache(readouts=readouts))
        session.cache.progress = report
        options: dict[str, Any] = {"seed": plan.seed, "train": plan.train, "select": plan.select}
        backbone = plan.backbone(world=dataset.world)
        run = prepare_run(session, backbone, images, plan.setup, plan.roles, plan.reading, **options)
    left_out = LeftOut(session, run, images.unlabeled)
    choice, present = None, plan.config.get("method")
    if plan.is_auto:
        choice = choose_method(left_out, present=present, progress=report)
        run = check_run(session, session.complete(replace(run, setup=choice.setup)))
    if present not in (None, run.setup.method):
        settings = plan.config["training"].get("overrides", {}).get("method", {})
        warn(f"{plan.continue_from}: {describe_change(str(present), run.setup.method, choice, settings)}")
    trial = train_adapter(session, run, plan.folder, report)
    if images.unlabeled is not None:
        gain = UnlabeledGain(**add_unlabeled(trial, images.unlabeled))
        images = replace(images, facts=replace(images.facts, unlabeled=gain))
    calibration, scores = calibrate_fit(trial, images, left_out, choice)
    bundle = make_bundle(plan, trial, images, choice, calibration)
    bundle, crossed, review = measure_fit(plan, bundle, trial, left_out, scores, choice, report)
    from_before = readouts.images - readouts.encoded
    if from_before or (readouts.images and plan.earlier is not None):
        warn(f"images with features from earlier commands: {len(from_before)} of {len(readouts.images)}")
    return Fitted(plan, bundle, run.clip, dataset, source.test, crossed, review)


def train_adapter(session: Session, run: ResolvedRun, out: Path | None, report: Progress) -> Trial:
    """Train on all classes, from the last checkpoint in ``out`` if there is one. A damaged checkpoint is set
    aside, and the training starts over.
    """
    checkpoint = out and run.file(out / UNFINISHED, ".pt")
    if checkpoint and checkpoint.parent.is_dir():
        names = [path.name for path in checkpoint.parent.iterdir()]
        if names and not any(name.startswith(checkpoint.stem) for name in names):
            warn(f"{out}: an unfinished fit with other options is replaced")
    on_step = _report_steps(report, teacher=run.teacher is not None)
    trial = Trial(session, run, checkpoint, on_step)
    trial.train(range(len(trial.source.classnames)))
    return trial


def _report_steps(report: Progress, *, teacher: bool) -> OnStep:
    """Report the steps of a training, and before them those of its teacher."""
    names = ["training the teacher", "training"] if teacher else ["training"]

    def on_step(step: TrainingStep) -> None:
        if step.done and not step.losses:  # before its first step
            warn(f"{names[0]}: continuing after epoch {step.epoch} of {step.epochs}")
        report(names[0], step.done, step.of)
        if step.done == step.of:
            del names[:-1]

    return on_step


def make_bundle(
    plan: FitPlan, trial: Trial, images: FitImages, choice: Choice | None, calibration: Calibration
) -> Bundle:
    """The bundle of a trained method, not yet measured."""
    run, dataset = trial.run, images.dataset
    backbone = plan.backbone(world=dataset.world)
    method, with_images = trial.method, {*dataset.train.labels.tolist()}
    cost = method.describe_names() if isinstance(method, LeavesOut) else {}
    named = tuple(name for label, name in enumerate(dataset.classnames) if label not in with_images)
    held_out = plan.reading.with_test_share(TEST_SHARE).test_share if len(dataset.test) else None
    return Bundle(
        method=run.setup.method,
        settings=run.settings.without_files(),
        model=backbone.model,
        pretrained=backbone.pretrained,
        weights=run.clip.identity,
        roles=run.table,
        classes=dataset.classnames,
        templates=dataset.templates,
        tensors=copy_stored(trial.method),
        temperature=calibration.temperature,
        keys=() if tuple(map(with_spaces, dataset.keys)) == dataset.classnames else dataset.keys,
        training=replace(
            images.facts,
            seed=run.seed,
            epoch=trial.epoch_tested,
            seconds=trial.train_seconds,
            epochs=tuple(Epoch(epoch["epoch"], epoch["loss"], epoch.get("val")) for epoch in trial.epochs),
            train=run.used_training,
            overrides=run.overrides,
            teacher=None if run.teacher is None else teacher_facts(run.teacher),
            chosen="" if choice is None else choice.reason,
            candidates=() if choice is None else choice.candidates,
            calibration_images=calibration.images,
            doubted_labels=calibration.doubted,
            uncalibrated=calibration.missing,
            held_out=held_out or 0.0,
            named=named,
            name_cost=NameCost(**cost) if cost else None,
            environment=environment(),
            command=plan.command,
        ),
        image_hashes=images.hashes,
        refuse=plan.refuse,
    )
