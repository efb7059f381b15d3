"""Fit an adapter to a data set, and make its bundle, in one call: `fit` calls the functions below it."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from dear.adapters.bundle import Bundle
from dear.adapters.bundle_config import check_writable, read_config
from dear.adapters.calibration import calibrate_bundle, calibrate_by_left_out
from dear.adapters.choose import Choice, choose_method, describe_change
from dear.adapters.facts import CROSS_VALIDATION, Epoch, NameCost, UnlabeledGain
from dear.adapters.labels import require_applied
from dear.adapters.leftout import LeftOut, LeftOutScores
from dear.adapters.operating import OperatingGoal, OperatingPoint
from dear.adapters.predictor import Predictor
from dear.adapters.prepare import FitImages, add_named, check_run, prepare_data, read_data, resolve_run
from dear.adapters.review import review_images, write_review
from dear.adapters.scoring import (
    choose_operating_point,
    cross_validate,
    evaluate_images,
    measure_decided,
)
from dear.backbone.clip import Clip
from dear.backbone.loading.load import find_weights
from dear.backbone.names import BackboneName, backbone_or_default
from dear.curation.issues import REFUSED_SHARE, REVIEW_CSV
from dear.curation.outlier_fit import fit_outlier_model
from dear.curation.outliers import OutlierModel
from dear.curation.unlabeled import add_unlabeled, read_unlabeled, require_taken
from dear.data.dataset import Dataset
from dear.data.fewshot import Subset
from dear.data.images.photos import group_names, split_hashes
from dear.data.loading import deferred_warnings, is_several, of_world
from dear.data.settings import DataSettings
from dear.data.sources.class_names import with_spaces
from dear.data.sources.corrections import answered_contents
from dear.data.sources.splits import TEST_SHARE
from dear.errors import DearError, SettingsError, warn
from dear.evaluation.environment import environment
from dear.evaluation.predictions import Predictions
from dear.evaluation.resolve import MethodSetup, ResolvedRun, Select, warn_of_unused_training
from dear.evaluation.session import Session
from dear.evaluation.trial import Trial, copy_stored, remove_checkpoints, teacher_facts
from dear.methods.optional import LeavesOut
from dear.methods.registry import AUTO, FIT_METHOD
from dear.progress import OnStep, Progress, Steps, TrainingStep
from dear.reading.files import expanded
from dear.training.cache import Cache, Readouts
from dear.training.settings import check_training
from dear.writing import PART, UNFINISHED, locked

Made = TypeVar("Made")


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
    choose_folder: Callable[..., Path] | None = None,
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
        choose_folder: Called before the bundle is written, with it, the backbone, the data, and the
            predictions of training images that were left out, with these: the folder to write to.

    Returns the bundle. Raises DearError, before training where possible.
    """
    if out is not None and not isinstance(out, str | Path):
        raise SettingsError(
            f"out is a {type(out).__name__}, not a folder: images and labels are a pair, as in "
            "fit((images, labels))."
        )
    folder = None if out is None else expanded(out)
    if folder is not None:
        check_writable(folder, overwrite=overwrite)
        if review:
            require_applied(folder / REVIEW_CSV, data)
    earlier = None if continue_from is None else expanded(continue_from)
    config = {} if earlier is None else read_config(earlier)
    if earlier is not None and model is None and pretrained is None:
        model, pretrained = (config["backbone"].get(key) for key in ("model", "pretrained"))
    present = config.get("method")
    names_by_key = dict(zip(config.get("keys", ()), config.get("classes", ()), strict=False))
    method, train = method or AUTO, check_training(train or {})
    goal = OperatingGoal.of(precision, costs, per_class=per_class)
    if method == AUTO and settings:
        raise SettingsError(
            "settings are those of one method, which is not named: give method too, or omit the settings."
        )
    setup = MethodSetup(FIT_METHOD if method == AUTO else method, settings or {})
    dataset = dataset or DataSettings()
    if method == AUTO or setup.declared.cheap:  # cross-validated, so that no image is kept aside
        dataset = dataset.with_test_share(config.get("training", {}).get("held_out", 0.0))
    sources = [data] if isinstance(data, str | Path) else data if is_several(data) else ()
    warn_of_unused_training(setup, setup.declared.settings(**setup.settings), train)
    for place in sources:  # fails before the images are read
        if folder is not None and folder.resolve().is_relative_to(expanded(place).resolve()):
            raise SettingsError(
                f"{folder} is inside of the data {place}: the next fit would take it for a class. Give "
                "another folder."
            )
    if sources:
        find_weights(*backbone_or_default(model, pretrained, world=of_world(map(str, sources))))
    with ExitStack() as stack:
        if folder is not None:
            stack.enter_context(locked(folder, dataset.cache_folder()))
        report = progress if progress is not None else stack.enter_context(Steps())
        with deferred_warnings():
            source = read_data(data, dataset, shots, names_by_key).require_single_labels()
            source = add_named(source, add_classes)
            images = prepare_data(source, setup, shots, seed, select)
            if goal is not None and goal.costs is not None:
                goal.costs.check(images.dataset.classnames)
            if unlabeled is not None:
                require_taken(setup.method)
                images = replace(images, unlabeled=read_unlabeled(unlabeled, images.dataset, dataset))
            readouts = Readouts(dataset.cache_folder(), draws_by_content=True)
            session = Session(device, cache=Cache(readouts=readouts))
            session.cache.progress = report
            name = backbone_or_default(model, pretrained, world=images.dataset.world)
            options: dict[str, Any] = {"seed": seed, "train": train, "select": select}
            run = resolve_run(session, name, images, setup, roles, dataset, **options)
        choice = None
        if method == AUTO:
            choice = choose_method(session, run, unlabeled=images.unlabeled, present=present, progress=report)
            run = check_run(session, session.complete(replace(run, setup=choice.setup)))
        if present not in (None, run.setup.method):
            given = config["training"].get("overrides", {}).get("method", {})
            warn(f"{continue_from}: {describe_change(str(present), run.setup.method, choice, given)}")
        trial = train_adapter(session, run, folder, report)
        if images.unlabeled is not None:
            gain = UnlabeledGain(**(trial.unlabeled or add_unlabeled(trial, images.unlabeled)))
            images = replace(images, facts=replace(images.facts, unlabeled=gain))
        held_out = dataset.with_test_share(TEST_SHARE).test_share if len(images.dataset.test) else 0.0
        images = replace(images, facts=replace(images.facts, command=command, held_out=held_out or 0.0))
        bundle = replace(make_bundle(trial, images, name, choice), refuse=refuse)
        scores, left_out = None, attempt("cross-validation", lambda: LeftOut(session, run, images.unlabeled))
        if left_out is not None:
            bundle, scores = calibrate_fit(bundle, trial, images, left_out, choice)
        bundle, test = measure(bundle, run.clip, images.dataset, report, session.cache)
        crossed, groups, judged_images = None, list[Any](), None
        if left_out is not None and scores is not None and len(scores.judged) and (test is None or goal):
            of_procedure = (choice and choice.scores) or scores
            crossed_scores, crossed = cross_validate(bundle, trial, left_out, of_procedure)
            groups = of_procedure.groups.tolist()
            judged_images = Subset(left_out.pictures, of_procedure.judged.cpu())
            bundle = bundle if test is not None else replace(bundle, scores=crossed_scores)
        if goal is not None:
            bundle = add_operating_point(bundle, goal, crossed, groups, test, images.dataset)
        if left_out is not None and refuse:
            bundle = replace(bundle, known=attempt('"none of these"', partial(find_known, left_out)))
        reviewed = None
        if left_out is not None and review:
            judged = partial(review_images, left_out, scores, answered_contents(data))
            reviewed = attempt("the review of labels", judged)
        if earlier is not None and bundle.scores is None:
            bundle = add_earlier_test(bundle, Bundle.from_pretrained(earlier))
        if review and reviewed is not None:
            judge = "" if reviewed.method == bundle.method else reviewed.method
            facts = replace(bundle.training, judged_labels=len(reviewed.judged), judge=judge)
            is_precise, wrong = reviewed.scores.is_precise, reviewed.wrong_labels()
            facts = replace(facts, is_precise=is_precise, suspect_labels=len(wrong) if is_precise else 0)
            facts = replace(facts, confused=reviewed.confused_pairs)
            issues = (*wrong, *reviewed.twins(with_test=test is not None))
            bundle = replace(bundle, review=issues, training=facts)
        known = readouts.images - readouts.encoded
        if known or (readouts.images and earlier is not None):
            warn(f"images with features from earlier commands: {len(known)} of {len(readouts.images)}")
        if folder is not None:
            unfinished = folder
            if choose_folder is not None:
                folder = choose_folder(bundle, run.clip, images.dataset, crossed, judged_images)
            save(bundle, folder, unfinished)
            if reviewed is not None and bundle.review is not None:
                names = dataset.classnames
                write_review(folder, reviewed, bundle.review, data, bundle.model, source.test, names)
    if verbose:
        print(bundle.verdict)
    return bundle


def calibrate_fit(
    bundle: Bundle, trial: Trial, images: FitImages, left_out: LeftOut, choice: Choice | None
) -> tuple[Bundle, LeftOutScores | None]:
    """The bundle with its temperature, or why it has none, and the scores of training images that were left
    out of its very method and settings, if it has them.
    """
    is_calibrated = images.calibration is not None
    if images.calibration is not None:
        bundle = calibrate_bundle(bundle, trial, images.calibration)
    try:
        scores = (choice and choice.left_out) or left_out.scores(trial)
    except DearError as error:
        reason = "" if is_calibrated else str(error).removesuffix(".")
        return replace(bundle, training=replace(bundle.training, uncalibrated=reason)), None
    return bundle if is_calibrated else calibrate_by_left_out(bundle, scores), scores


def find_known(left_out: LeftOut) -> OutlierModel | None:
    """What "none of these" is told by."""
    features, labels = left_out.frozen_features(), left_out.labels
    return fit_outlier_model(features, labels, len(left_out.dataset.classnames), left_out.groups)


def attempt(name: str, make: Callable[[], Made]) -> Made | None:
    """A part of a fit; None, with a warning, if it cannot be made, which takes nothing else away."""
    try:
        return make()
    except Exception as error:
        warn(f"{name} is left out: {error or type(error).__name__}")
        return None


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


def make_bundle(trial: Trial, images: FitImages, name: BackboneName, choice: Choice | None) -> Bundle:
    """The bundle of a trained method, not yet calibrated or measured."""
    run, dataset = trial.run, images.dataset
    method, with_images = trial.method, {*dataset.train.labels.tolist()}
    cost = method.describe_names() if isinstance(method, LeavesOut) else {}
    named = tuple(name for label, name in enumerate(dataset.classnames) if label not in with_images)
    return Bundle(
        method=run.setup.method,
        settings=run.settings.without_files(),
        model=name.model,
        pretrained=name.pretrained,
        weights=run.clip.identity,
        roles=run.table,
        classes=dataset.classnames,
        templates=dataset.templates,
        tensors=copy_stored(trial.method),
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
            named=named,
            name_cost=NameCost(**cost) if cost else None,
            environment=environment(),
        ),
        image_hashes=images.hashes,
    )


def add_operating_point(
    bundle: Bundle,
    goal: OperatingGoal,
    crossed: Predictions | None,
    groups: Sequence[int],
    test: Predictions | None,
    dataset: Dataset,
) -> Bundle:
    """The bundle with an operating point, chosen by the training images that were left out in turn and their
    ``groups``; of a method that takes too long for that, by the test images. Those then say what it decides
    of images on which it was not chosen.
    """
    point, scores = OperatingPoint(goal.precision, costs=goal.costs), bundle.scores
    if crossed is not None:
        point = choose_operating_point(goal, crossed, groups, CROSS_VALIDATION)
    elif test is not None:
        point = choose_operating_point(goal, test, group_names(dataset.test), "test")
    if crossed is not None and test is not None and scores is not None:
        scores = replace(scores, decided=measure_decided(point, test, group_names(dataset.test)))
    return replace(bundle, scores=scores, training=replace(bundle.training, operating=point))


def measure(
    bundle: Bundle, clip: Clip, dataset: Dataset, report: Progress, cache: Cache
) -> tuple[Bundle, Predictions | None]:
    """The bundle with its scores on the test images, if there are any, and their predictions."""
    if not len(dataset.test):
        return bundle, None
    options: dict[str, Any] = {"is_unseen": True, "progress": report, "cache": cache}
    scores, predictions, _ = evaluate_images(Predictor(bundle, clip=clip), dataset, **options)
    return replace(bundle, scores=scores), predictions


def add_earlier_test(bundle: Bundle, earlier: Bundle) -> Bundle:
    """The bundle with what was measured of an earlier one, if that has the same method, settings and classes
    and was fitted on images of this one alone.
    """
    facts = [(each.method, each.settings, each.classes, each.weights) for each in (bundle, earlier)]
    if facts[0] != facts[1] or split_hashes(earlier.image_hashes) - split_hashes(bundle.image_hashes):
        return bundle
    return replace(bundle, training=replace(bundle.training, earlier_test=earlier.scores))


def save(bundle: Bundle, out: Path, unfinished: Path) -> None:
    """Write the bundle, and remove from the folder of the ``unfinished`` one the checkpoints of its training
    and of fits with other options.
    """
    bundle.save_pretrained(out)
    for state in (unfinished / UNFINISHED).glob("*.pt"):
        remove_checkpoints(state)
    for part in (unfinished / UNFINISHED).glob(f"*{PART}"):  # of a fit that was killed
        part.unlink(missing_ok=True)
    with suppress(OSError):  # there is none, or one that was set aside
        (unfinished / UNFINISHED).rmdir()
