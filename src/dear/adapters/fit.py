"""Fit an adapter to a data set, and make its bundle, in one call."""

from contextlib import ExitStack, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dear.adapters.bundle import Bundle, distinct
from dear.adapters.bundle_config import check_writable
from dear.adapters.calibration import best_temperature, calibration_images
from dear.adapters.predictor import Predictor
from dear.adapters.scoring import evaluate_bundle, unseen
from dear.backbone.choice import backbone_or_default, warn_of_toy
from dear.backbone.clip import Clip, fill
from dear.backbone.load import find_weights, load_clip
from dear.data.dataset import Dataset
from dear.data.fewshot import Subset, draw_few, uneven
from dear.data.images.hashes import image_hashes
from dear.data.loading import held_notes, load_dataset, of_world
from dear.data.settings import DataSettings
from dear.data.sources.listing import with_spaces
from dear.errors import DataError, RoleTableError, SettingsError, warn
from dear.evaluation.environment import environment
from dear.evaluation.metrics import METRICS
from dear.evaluation.plan import Plan, Select
from dear.evaluation.predictions import predict
from dear.evaluation.protocols.few_shot import FewShot
from dear.evaluation.run_context import RunContext
from dear.evaluation.trial import (
    Trial,
    check_prompts,
    find_longest_name,
    remove_checkpoints,
    require_files,
    teacher_facts,
)
from dear.methods.declaration import MethodSettings
from dear.methods.registry import FIT_METHOD, FIT_REASON, METHODS, check_towers, known_method
from dear.progress import Progress, Steps, TrainingStep
from dear.reading.files import expanded
from dear.roles.discover import DISCOVER, discover_at_hand, seconds_at_hand
from dear.roles.packaged import WITHOUT, known_by_name, role_table
from dear.roles.table import RoleTable
from dear.training.checkpoint import CheckpointError, set_aside
from dear.training.settings import TrainOptions
from dear.writing import UNFINISHED

CURVE = ("epoch", "loss", "val")  # entries of each epoch in a bundle


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
    settings: MethodSettings | None = None,
    train: TrainOptions | None = None,
    select: Select = "last",
    dataset: DataSettings | None = None,
    calibrate: bool | None = None,
    overwrite: bool = False,
    device: str = "auto",
    progress: Progress | None = None,
    verbose: bool = True,
) -> Bundle:
    """Adapt a backbone to all classes of a data set, and write the bundle to ``out`` if that is not None.
    Nothing is selected on test images. If it is interrupted, the same call continues after the last epoch
    whose state is in ``out``.

    Args:
        data: A data set, or what `load_dataset` takes: a folder, a file, (images, labels), a data frame, ...
        out: Folder of the bundle.
        method: Name of the method; by default that of ``settings``, or without any `FIT_METHOD`.
        model, pretrained: The backbone; by default ViT-B-16 with the weights laion2b_s34b_b88k, which the
            hub's client fetches once, and for a task of the Attribute World the tiny CLIP.
        roles: A role table, the name of a packaged one, or "discover" to compute one from the training
            images; if None, the packaged one for the backbone.
        shots: Training images per class; all if None.
        settings, train: Settings of the method and of training; by default the method's published ones.
        select: The epoch that is tested: the last, or the best on validation images.
        dataset: How the data is read.
        calibrate: Fit the temperature on validation images or, without any, on the unused training images; if
            None, where there are at least 20 of them.
        overwrite: Replace a bundle in ``out``.
        progress: Called with (step, done, of); if None, a terminal shows bars with the remaining time.
        verbose: Print `Bundle.verdict`.

    Returns the bundle. Raises DearError, before training where possible.
    """
    unfinished = None
    if out is not None and not isinstance(out, str | Path):
        raise SettingsError(
            f"out is a {type(out).__name__}, not a folder: images and labels are a pair, as in "
            "fit((images, labels))."
        )
    if out is not None:
        check_writable(expanded(out), overwrite=overwrite)
        unfinished = expanded(out) / UNFINISHED
    method = known_method(method or _method_of(settings))
    plan = Plan(method, settings=settings)
    with ExitStack() as stack:
        report = progress if progress is not None else stack.enter_context(Steps())
        if isinstance(data, str | Path):  # before its images are read
            find_weights(*backbone_or_default(model, pretrained, world=of_world([str(data)])))
        with held_notes():
            images = data if isinstance(data, Dataset) else load_dataset(data, dataset)
            distinct(images.classnames, images.name)
            if len(images.classnames) == 1:
                warn(f"{images.name}: it has a single class, so every image will be {images.classnames[0]!r}")
            few, count = _with_shots(images, shots)
            picked = draw_few(few, count, seed)[0].indices if plan.trains else ()
            if shots is None and picked:
                labels = images.train.labels[[*picked]].tolist()
                if warning := uneven(labels, few.classnames):
                    warn(f"{images.name}: {warning}")
            trained_on = range(len(images.train)) if plan.unlabelled else picked
            calibration = calibration_images(images, trained_on, calibrate)
            few_images = Subset(images.train, torch.tensor([*trained_on], dtype=torch.int64))
            fitted_on = filter(None, (few_images, calibration, images.val if select == "val" else None))
            hashes = b"".join(sorted({digest for part in fitted_on for digest in image_hashes(part)}))
            images, _ = unseen(images, "test", hashes)
            model, pretrained = backbone_or_default(model, pretrained, world=images.world)
            warn_of_toy(model, world=images.world)
            clip = load_clip(model, pretrained, device=device)
            (dataset or DataSettings()).require_short_side(clip.image_size)
            check_towers(method, clip)
            table = _roles(clip, roles, images, report) if plan.needs_roles else None
            context = RunContext(clip, table, train or TrainOptions(), select)
            run = context.resolve(FewShot(), [few], plan, seed=seed, shots=count)
            check_prompts(
                context, run, few.classnames[find_longest_name(clip, few.classnames)], few.templates
            )
            clip.check_prompts(few.classnames, [fill(part, few.classnames) for part in few.templates])
            run.settings.check_classes(few.classnames, few.classnames)
            settings = run.settings.without_files()
        training = _Training(report, teacher=run.teacher is not None)
        checkpoint = unfinished and run.file(unfinished, ".pt")
        if checkpoint and checkpoint.parent.is_dir():
            require_files(checkpoint)
            states = [path.name.startswith(checkpoint.stem) for path in checkpoint.parent.iterdir()]
            if states and not any(states):
                warn(f"{out}: an unfinished fit with other options is replaced")
        trial = _trained(Trial(context, run, checkpoint, training))
        bundle = Bundle(
            method=method,
            settings=settings,
            model=model,
            pretrained=pretrained,
            weights=clip.identity,
            roles=run.roles,
            classes=images.classnames,
            templates=images.templates,
            tensors={name: _stored(tensor) for name, tensor in trial.method.stored_tensors().items()},
            keys=() if tuple(map(with_spaces, images.keys)) == images.classnames else images.keys,
            training={
                "data": images.name,
                "data_identity": images.identity,
                "shots": "all" if shots is None else shots,
                "train_images": len(picked),
                **({"unlabelled_images": len(trained_on)} if plan.unlabelled else {}),
                "test_images": len(images.test),
                "seed": seed,
                "epoch": trial.epoch_tested,
                "seconds": sum(epoch["seconds"] for epoch in trial.all_epochs),
                "epochs": [{key: epoch[key] for key in CURVE if key in epoch} for epoch in trial.epochs],
                "train": asdict(run.training),
                "set_by_user": context.set_by_user(plan),
                **({} if run.teacher is None else {"teacher": teacher_facts(run.teacher)}),
                "environment": environment(),
            },
            image_hashes=hashes,
        )
        if calibration is not None:
            held_out = predict(trial.method, calibration, precision=run.training.precision)
            temperature = best_temperature(held_out.logits.float(), held_out.labels)
            training_facts = {**bundle.training, "calibration_images": len(calibration)}
            bundle = replace(bundle, temperature=temperature, training=training_facts)
        if len(images.test):
            measured = asdict(
                evaluate_bundle(Predictor(bundle, clip=clip), images, cautious=False, progress=report)
            )
            bundle = replace(
                bundle, metrics={name: value for name, value in measured.items() if name in METRICS}
            )
    if out is not None:
        bundle.save_pretrained(out)
    if checkpoint is not None:
        remove_checkpoints(checkpoint)
        for state in checkpoint.parent.glob("*.pt"):  # of fits with other options
            state.unlink()
        with suppress(OSError):  # there is none, or one that was set aside
            checkpoint.parent.rmdir()
    if verbose:
        print(bundle.verdict, *[f"{method} is {FIT_REASON}."] * (method == FIT_METHOD), sep="\n")
    return bundle


def _method_of(settings: MethodSettings | None) -> str:
    """The method that takes settings of this type, or the default one."""
    takers = (name for name, declared in METHODS.items() if declared.settings is type(settings))
    return FIT_METHOD if settings is None else next(takers, FIT_METHOD)


class _Training:
    """Reports the steps of a training, and before them those of its teacher."""

    def __init__(self, report: Progress, *, teacher: bool) -> None:
        self.report = report
        self.name = "training the teacher" if teacher else "training"

    def __call__(self, step: TrainingStep) -> None:
        if step.done and not step.losses:  # before its first step
            warn(f"{self.name}: continuing after epoch {step.epoch} of {step.epochs}")
        self.report(self.name, step.done, step.of)
        if step.done == step.of:
            self.name = "training"


def _trained(trial: Trial) -> Trial:
    """The trial, trained on all classes. A damaged checkpoint is set aside, and the training starts over."""
    classes = range(len(trial.source.classnames))
    try:
        trial.train(classes)
    except CheckpointError as error:
        set_aside(error.path)
        trial.train(classes)
    return trial


def _roles(clip: Clip, roles: Path | str | None, images: Dataset, report: Progress) -> RoleTable:
    """The requested role table, the packaged one, or one from the training images. If there is none, raises
    RoleTableError, which says how long it takes to discover one.
    """
    if str(roles) == DISCOVER:
        return discover_at_hand(clip, images, report)
    try:
        return role_table(clip, roles)
    except RoleTableError as error:
        if roles is not None:
            raise
        try:
            minutes = max(1, round(seconds_at_hand(clip, images) / 60))
            advice = f"--roles {DISCOVER} finds one from the {len(images.train)} training images"
            advice += f" (about {minutes} min here)"
        except DataError as too_few:
            advice = str(too_few).removesuffix(".")
        raise RoleTableError(
            f"no role table is known for {clip.identity}{known_by_name(clip.identity)}: {advice}; --method "
            f"{WITHOUT} needs none."
        ) from error


def _with_shots(images: Dataset, shots: int | None) -> tuple[Dataset, int]:
    """The data set and the number of shots that select the requested number of images of each class."""
    if shots is not None:
        if shots < 1:
            raise SettingsError(f"shots is {shots}: it must be at least 1; omit it to use all images.")
        return images, shots
    if not len(images.train):
        raise DataError(f"{images.name} has no training images: it can only be tested on.")
    return replace(images, allow_fewer=True), int(torch.bincount(images.train.labels).max())


def _stored(tensor: Tensor) -> Tensor:
    """A copy for a bundle, which is used in float32 even if it was trained in float16."""
    dtype = torch.float32 if tensor.dtype == torch.float16 else tensor.dtype
    return tensor.detach().to(dtype, copy=True)
