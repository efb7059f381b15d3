"""What runs share (model, roles, training settings, caches), and the part that all protocols begin with:
build a method, draw its few images, train it.
"""

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from lightning_fabric import Fabric

from dear.backbone.clip import Clip
from dear.data.dataset import Dataset
from dear.data.fewshot import ClassSubset, Pick, draw_few
from dear.errors import DataError, SettingsError
from dear.evaluation.memory import start_counting
from dear.evaluation.metrics import evaluate
from dear.evaluation.plan import Plan, Select
from dear.evaluation.resolve import Training, settings_of, training_of
from dear.methods.base import Method
from dear.methods.registry import build_method
from dear.roles.table import RoleTable
from dear.training.loop import train
from dear.training.seeding import generator
from dear.training.settings import Precision, TrainOptions
from dear.training.trunks import TrunkCache
from dear.training.viewcache import ViewCache

CACHE_BYTES = 2 * 2**30

Progress = Callable[[int, dict[str, float]], None]


def no_progress(_epoch: int, _parts: dict[str, float]) -> None:
    """Tell nobody."""


@dataclass
class RunContext:
    """What the runs of an experiment share.

    Attributes:
        roles: The role table of the weights, for the methods that need one.
        training: Settings of training: whole ones, or what is set over those that a method is published with.
        select: Which epoch is tested: the last, or the best on validation images of the training classes.
        views: Trunk outputs of views on disk, for settings with a view seed.
        fabric: Where to train; one process on the model's device if None.
        keep: Whether to keep the states of methods trained on base classes, for what tests them afterwards.
        trained: States of trained methods: those trained on a whole data set, and what is kept.
    """

    clip: Clip
    roles: RoleTable | None = None
    training: Training = field(default_factory=TrainOptions)
    select: Select = "last"
    cache: TrunkCache = field(default_factory=lambda: TrunkCache(CACHE_BYTES))
    views: ViewCache | None = None
    fabric: Fabric | None = None
    keep: bool = False
    trained: dict[str, tuple[dict[str, torch.Tensor], list[dict[str, Any]]]] = field(default_factory=dict)

    @property
    def main(self) -> bool:
        """Whether this process is the one that writes."""
        return self.fabric is None or self.fabric.is_global_zero

    def key(self, protocol: str, datasets: Sequence[Dataset], plan: Plan, seed: int, shots: int) -> str:
        """16 digits that change with whatever the numbers of a run depend on, but for the code."""
        roles = plan.table(self.roles, seed)
        facts = [
            *(protocol, plan.method, seed, shots, self.select),
            *(
                asdict(self.clip.identity),
                [dataset.identity for dataset in datasets],
                training_of(plan, self.training).fingerprint_fields(),
            ),
            *(asdict(settings_of(plan, datasets[0].name)), roles and roles.to_json()),
        ]
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Adapted:
    """A method after training, with what its record tells of it."""

    method: Method
    plan: Plan
    roles: RoleTable | None
    seed: int
    shots: int
    pick: Pick | None
    epochs: list[dict[str, Any]]
    tested: int | None
    precision: Precision = "auto"


def adapt(
    context: RunContext,
    dataset: Dataset,
    classes: Sequence[int],
    plan: Plan,
    *,
    seed: int,
    shots: int,
    checkpoint: Path | None = None,
    remember: str | None = None,
    other_classes: bool = False,
    label: str = "run",
    progress: Progress = no_progress,
) -> Adapted:
    """Build a plan's method for some classes of a data set and train it on a few images of each.

    ``remember`` keeps the trained state under that key in the bench, or takes up what is kept there. Raises
    DataError where validation images are asked for and there are none, SettingsError where ``other_classes``
    are to be scored after it and the method cannot.
    """
    start_counting()
    precision = training_of(plan, context.training).precision
    method = fresh(context, dataset, plan, seed=seed, other_classes=other_classes)
    roles = plan.table(context.roles, seed)
    names = [dataset.classnames[label] for label in classes]
    method.set_classes(names, dataset.templates)
    if not method.trainable:
        return Adapted(method, plan, roles, seed, shots, None, [], None, precision)
    pick, few = draw_few(dataset, shots, seed, classes)
    if remember in context.trained and remember is not None:
        state, epochs = context.trained[remember]
        method.load_state_dict(state)
    else:
        epochs = train(
            method,
            few,
            training_of(plan, context.training),
            seed=seed,
            cache=context.cache,
            views=context.views,
            checkpoint=checkpoint,
            fabric=context.fabric,
            validate=_validation(context, method, dataset, classes, precision),
            label=label,
            progress=progress,
        )
        if remember is not None:
            state = {name: tensor.detach().clone() for name, tensor in method.state_dict().items()}
            context.trained[remember] = state, epochs
    tested = len(epochs)
    if context.select == "val":
        tested = max(epochs, key=lambda epoch: (epoch["val"], -epoch["epoch"]))["epoch"]
    return Adapted(method, plan, roles, seed, shots, pick, epochs, tested, precision)


def fresh(
    context: RunContext, dataset: Dataset, plan: Plan, *, seed: int, other_classes: bool = False
) -> Method:
    """A plan's method before training, without classes. Raises DearError for settings that do not go with
    the backbone, SettingsError for a method that cannot score ``other_classes``.
    """
    method = build_method(
        plan.method,
        context.clip,
        generator(seed, "parameters"),
        roles=plan.table(context.roles, seed),
        settings=settings_of(plan, dataset.name),
    )
    if other_classes and not method.open_vocabulary:
        raise SettingsError(
            f"{plan.method} with these settings cannot score classes that it was not trained on: "
            "run it with few-shot, or change them."
        )
    return method


def _validation(
    context: RunContext, method: Method, dataset: Dataset, classes: Sequence[int], precision: Precision
) -> Callable[[], float] | None:
    """Accuracy on the validation images of the training classes, if that is what the epoch is chosen by."""
    if context.select == "last":
        return None
    images = validation_images(dataset, classes)
    return lambda: evaluate(method, images, cache=context.cache, precision=precision).accuracy


def validation_images(dataset: Dataset, classes: Sequence[int]) -> ClassSubset:
    """The validation images of some classes, which an epoch is chosen by. Raises DataError without any."""
    if dataset.val is None:
        raise DataError(
            f"{dataset.name} has no validation images to choose an epoch by: leave --select val out."
        )
    images = ClassSubset(dataset.val, classes)
    if not len(images):
        raise DataError(
            f"{dataset.name} has no validation images of the training classes: leave --select val out."
        )
    return images
