"""From a folder of images to an adapter bundle in one call."""

import warnings
from collections.abc import Collection
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path

import torch

from dear.adapters.bundle import Bundle, distinct
from dear.adapters.bundle_files import check_place
from dear.adapters.calibration import best_temperature
from dear.adapters.predictor import Predictor, Vocabulary
from dear.adapters.scoring import all_logits, evaluate_bundle
from dear.backbone.choice import chosen, warn_of_toy
from dear.backbone.clip import Clip
from dear.backbone.load import load_clip
from dear.backbone.precisions import Precision
from dear.data.dataset import Dataset, Images
from dear.data.fewshot import Subset, draw_few, uneven
from dear.data.loading import load_dataset
from dear.data.notes import held_notes
from dear.data.settings import DataSettings
from dear.data.sources.listing import with_spaces
from dear.errors import DataError, RoleTableError, SettingsError
from dear.evaluation.plan import Plan, Select
from dear.evaluation.protocols.few_shot import FewShot
from dear.evaluation.records import environment, teacher_facts
from dear.evaluation.resolve import ResolvedRun
from dear.evaluation.run_context import RunContext
from dear.evaluation.trial import Trial, check_prompts, longest_name
from dear.methods.base import Method
from dear.methods.declaration import MethodSettings
from dear.methods.registry import METHODS, OWN, known_method
from dear.progress import Progress, Steps
from dear.roles.discover import DISCOVER, discover_at_hand, seconds_at_hand
from dear.roles.packaged import WITHOUT, known_by_name, role_table
from dear.roles.table import RoleTable
from dear.training.settings import TrainOptions

CURVE = ("epoch", "loss", "val")  # what a bundle keeps of each epoch
METRICS = ("accuracy", "zero_shot", "chance", "top5", "log_loss", "calibration_error", "per_class")


def fit(
    data: Dataset | Path | str,
    out: Path | str | None = None,
    *,
    method: str = OWN,
    model: str | None = None,
    pretrained: str | None = None,
    roles: Path | str | None = None,
    shots: int | None = None,
    seed: int = 1,
    settings: MethodSettings | None = None,
    train: TrainOptions | None = None,
    select: Select = "last",
    dataset: DataSettings | None = None,
    calibrate: bool = False,
    overwrite: bool = False,
    device: str = "auto",
    progress: Progress | None = None,
) -> Bundle:
    """Adapt a backbone to all classes of a data set; returns the bundle, and writes it if ``out`` is given.

    ``data`` is a data set, or an argument of `load_dataset`. ``model`` is by default a real CLIP, ViT-B-16
    with the weights laion2b_s34b_b88k, which the hub's client fetches once; for a task of the Attribute World
    it is the tiny CLIP. ``shots`` is the number of training images per class, all of them if None. ``roles``
    is a role table, the name of a packaged one, or "discover" to find one from the training images; if None,
    the packaged one for the backbone. Where ``settings`` and ``train`` have no value, the method's published
    ones are used. ``calibrate`` fits the temperature on validation images or, if there are none, on the
    unused training images. ``overwrite`` replaces a bundle that ``out`` holds. Nothing is selected on test
    images. ``progress`` is called with (step, done, of); if None, bars with the time left are shown on a
    terminal.

    Raises DearError, before training where possible.
    """
    if out is not None:
        check_place(Path(out).expanduser(), overwrite=overwrite)
    method = known_method(method)
    kind = METHODS[method].settings
    if settings is not None and type(settings) is not kind:
        raise SettingsError(f"{method} takes {kind.__name__}, not {type(settings).__name__}.")
    with ExitStack() as stack:
        tell = progress if progress is not None else stack.enter_context(Steps())
        with held_notes():
            images = data if isinstance(data, Dataset) else load_dataset(data, dataset)
            distinct(images.classnames, images.name)
            few, count = _with_shots(images, shots)
            plan = Plan(method, settings=settings)
            picked = () if not plan.trains else draw_few(few, count, seed)[0].indices
            if (
                shots is None
                and picked
                and (said := uneven(images.train.labels[[*picked]].tolist(), few.classnames))
            ):
                warnings.warn(f"{images.name}: {said}", stacklevel=2)
            seen = range(len(images.train)) if plan.unlabelled else picked
            held = _held_out(images, seen) if calibrate else None
            model, pretrained = chosen(model, pretrained, world=images.world)
            warn_of_toy(model, world=images.world)
            clip = load_clip(model, pretrained, device=device)
            table = _roles(clip, roles, images, tell) if plan.needs_roles else None
            context = RunContext(clip, table, train or TrainOptions(), select)
            run = context.resolve(FewShot(), [few], plan, seed=seed, shots=count)
            check_prompts(context, run, few.classnames[longest_name(clip, few.classnames)], few.templates)
            run.settings.check_classes(few.classnames, few.classnames)
        trained = _Training(run, tell)
        trial = Trial(context, run, progress=trained)
        trial.train(range(len(images.classnames)))
        trained.end()
        bundle = Bundle(
            method=method,
            settings=run.settings,
            model=model,
            pretrained=pretrained,
            weights=clip.identity,
            roles=run.roles,
            classes=images.classnames,
            templates=images.templates,
            tensors={name: _kept(one) for name, one in trial.method.kept().items()},
            short_side=(dataset or DataSettings()).short_side,
            keys=() if tuple(map(with_spaces, images.keys)) == images.classnames else images.keys,
            training={
                "data": images.name,
                "data_identity": images.identity,
                "shots": "all" if shots is None else shots,
                "train_images": len(picked),
                **({"unlabelled_images": len(seen)} if plan.unlabelled else {}),
                "test_images": len(images.test),
                "seed": seed,
                "epoch": trial.epoch_tested,
                "seconds": sum(epoch["seconds"] for epoch in trial.all_epochs),
                "epochs": [{key: one[key] for key in CURVE if key in one} for one in trial.epochs],
                "train": asdict(run.training),
                **({} if run.teacher is None else {"teacher": teacher_facts(run.teacher)}),
                "environment": environment(),
            },
        )
        if held is not None:
            bundle = replace(bundle, temperature=_temperature(trial.method, held, run.training.precision))
        if len(images.test):
            measured = asdict(
                evaluate_bundle(Predictor(bundle, clip=clip), images, cautious=False, progress=tell)
            )
            bundle = replace(bundle, metrics={name: measured[name] for name in METRICS})
    if out is not None:
        bundle.save_pretrained(out)
    return bundle


class _Training:
    """Reports the epochs of a training, its teacher's among them, as one step."""

    def __init__(self, run: ResolvedRun, tell: Progress) -> None:
        runs = [run] if run.teacher is None else [run.teacher, run]
        self.of = sum(one.training.epochs for one in runs) if run.plan.trains else 0
        self.done, self.tell = 0, tell
        if self.of:
            tell("training", 0, self.of)

    def __call__(self, _epoch: int, _parts: dict[str, float]) -> None:
        self.done += 1
        if self.done < self.of:
            self.tell("training", self.done, self.of)

    def end(self) -> None:
        """All is done, also for a method that takes no steps."""
        if self.of:
            self.tell("training", self.of, self.of)


def _roles(clip: Clip, roles: Path | str | None, images: Dataset, tell: Progress) -> RoleTable:
    """The role table: given, packaged, or found from the training images. Raises RoleTableError that says how
    long it takes to find one, if there is none and none is asked for.
    """
    if str(roles) == DISCOVER:
        return discover_at_hand(clip, images, tell)
    try:
        return role_table(clip, roles)
    except RoleTableError as error:
        if roles is not None:
            raise
        try:
            minutes = max(1, round(seconds_at_hand(clip, images) / 60))
            way = f"--roles {DISCOVER} finds one from the {len(images.train)} training images"
            way += f" (about {minutes} min here)"
        except DataError as few:
            way = str(few).removesuffix(".")
        raise RoleTableError(
            f"no role table is known for {clip.identity}{known_by_name(clip.identity)}: {way}; --method "
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


def _held_out(images: Dataset, picked: Collection[int]) -> Images:
    """Images to calibrate on: validation images, else the unused training images."""
    if images.val is not None and len(images.val):
        return images.val
    left = sorted({*range(len(images.train))} - {*picked})
    if not left:
        raise DataError(
            f"{images.name} has no validation images, and all training images are used for training: "
            "there is nothing to calibrate on. Add a val/ folder, or limit the training images with --shots."
        )
    return Subset(images.train, torch.tensor(left))


@torch.no_grad()
def _temperature(method: Method, held: Images, precision: Precision) -> float:
    known = Vocabulary.of(method, precision)
    return best_temperature(all_logits(known, held).float(), held.labels.cpu())


def _kept(tensor: torch.Tensor) -> torch.Tensor:
    """A copy for a bundle, which is used in float32 whatever it was trained in."""
    kind = torch.float32 if tensor.dtype == torch.float16 else tensor.dtype
    return tensor.detach().to(kind, copy=True)
