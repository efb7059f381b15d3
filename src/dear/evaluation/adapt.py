"""The part that all protocols share: build a method, draw its few-shot images, train it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dear.backbone.clip import Clip, fill
from dear.backbone.precisions import HALF
from dear.data.dataset import Dataset
from dear.data.fewshot import ClassSubset, Pick, Unlabelled, draw_few
from dear.errors import DataError, SettingsError
from dear.evaluation.memory import start_counting
from dear.evaluation.metrics import evaluate
from dear.evaluation.resolve import ResolvedRun
from dear.evaluation.run_context import Progress, RunContext, no_progress
from dear.methods.base import Method
from dear.methods.registry import build_method
from dear.training.loop import train
from dear.training.seeding import generator


@dataclass(frozen=True)
class Adapted:
    """A trained method, with what its record reports about the training. A teacher's was before its own."""

    method: Method
    pick: Pick | None
    epochs: list[dict[str, Any]]
    tested: int | None
    teacher: "Adapted | None" = None

    @property
    def all_epochs(self) -> list[dict[str, Any]]:
        """Its epochs, after those of its teacher if it has one."""
        return self.epochs if self.teacher is None else self.teacher.epochs + self.epochs


def adapt(
    context: RunContext,
    run: ResolvedRun,
    classes: Sequence[int],
    *,
    checkpoint: Path | None = None,
    share: bool = False,
    label: str = "run",
    progress: Progress = no_progress,
) -> Adapted:
    """Train a run's method, fresh, on a few images of some classes.

    A method that has a teacher gets it first, trained on these images. One that trains without labels is then
    trained on all training images of the data set; its classes are all of them, the given ones first.

    With ``share`` the trained state is kept in the context for runs with the same training, or taken from
    there. Raises DataError if validation images are asked for and there are none, SettingsError for a
    method that cannot score classes it was not trained on where the protocol has such classes.
    """
    start_counting()
    dataset = run.source
    method = fresh(context, run)
    teacher = None
    if run.teacher is not None:
        teacher = adapt(
            context.of_teacher(run),
            run.teacher,
            classes,
            checkpoint=None if checkpoint is None else teacher_checkpoint(checkpoint),
            share=True,
            label=f"{label}-teacher",
            progress=progress,
        )
        method.set_teacher(teacher.method)
    others = [label for label in range(len(dataset.classnames)) if label not in classes]
    known = [*classes, *(others if run.plan.unlabelled else ())]
    method.set_classes([dataset.classnames[label] for label in known], dataset.templates)
    if not run.plan.trains:
        return Adapted(method, None, [], None)
    pick, few = draw_few(dataset, run.shots, run.seed, classes)
    images = Unlabelled(dataset.train) if run.plan.unlabelled else few
    key = run.training_key if share else None
    if key is not None and key in context.trained:
        state, epochs = context.trained[key]
        method.make_room(state)
        method.load_state_dict(state)
    else:
        epochs = train(
            method,
            images,
            run.training,
            seed=run.seed,
            cache=context.cache,
            views=context.views,
            checkpoint=checkpoint,
            fabric=context.fabric,
            validate=_validation(context, run, method, classes),
            label=label,
            progress=progress,
        )
        if key is not None:
            state = {name: tensor.detach().clone() for name, tensor in method.state_dict().items()}
            context.trained[key] = state, epochs
    tested = len(epochs) or None
    if run.select == "val" and epochs:
        tested = max(epochs, key=lambda epoch: (epoch["val"], -epoch["epoch"]))["epoch"]
    return Adapted(method, pick, epochs, tested, teacher)


def teacher_checkpoint(checkpoint: Path) -> Path:
    """The checkpoint of a teacher's training, beside that of the method that it teaches."""
    return checkpoint.with_name(f"{checkpoint.stem}-teacher.pt")


def fresh(context: RunContext, run: ResolvedRun) -> Method:
    """A run's method before training, without classes. Raises DearError for settings that do not suit the
    backbone, SettingsError for a method that cannot score the classes of the protocol and for an optimizer
    that cannot train in the precision.
    """
    method = build_method(
        run.plan.method,
        context.clip_in(run.training.precision),
        generator(run.seed, "parameters"),
        roles=run.roles,
        settings=run.settings,
    )
    if run.protocol.novel_classes and not method.open_vocabulary:
        raise SettingsError(
            f"{run.plan.method} with these settings cannot score classes it was not trained on: "
            "run it with few-shot, or change the settings."
        )
    training = run.training
    if training.precision == HALF and training.optimizer != "sgd" and run.plan.trains and method.takes_steps:
        raise SettingsError(
            f"{run.plan.method} is trained with {training.optimizer}, whose squares of gradients are too "
            f"small for float16: use --train.optimizer sgd, or another precision than {HALF}."
        )
    return method


def check_prompts(context: RunContext, run: ResolvedRun, name: str, templates: Sequence[str]) -> None:
    """Check that the settings of a run's method, and of its teacher's if it has one, suit the backbone and a
    class name. Raises as `fresh`, and SettingsError for a prompt that does not fit.
    """
    fresh(context, run).set_classes([name], templates)
    if run.teacher is not None:
        check_prompts(context.of_teacher(run), run.teacher, name, templates)


def longest_name(clip: Clip, names: Sequence[str]) -> int:
    """Which class name has the most tokens."""
    return int(clip.words_in(fill("{}", names)).argmax())


def _validation(
    context: RunContext, run: ResolvedRun, method: Method, classes: Sequence[int]
) -> Callable[[], float] | None:
    """Accuracy on the validation images of the training classes, if the epoch is selected by it."""
    if run.select == "last":
        return None
    images, precision = validation_images(run.source, classes), run.training.precision
    return lambda: evaluate(method, images, cache=context.cache, precision=precision).accuracy


def validation_images(dataset: Dataset, classes: Sequence[int]) -> ClassSubset:
    """The validation images of some classes, for selecting an epoch. Raises DataError if there are none."""
    if dataset.val is None:
        raise DataError(
            f"{dataset.name} has no validation images to select an epoch with: omit --select val."
        )
    images = ClassSubset(dataset.val, classes)
    if not len(images):
        raise DataError(
            f"{dataset.name} has no validation images of the training classes: omit --select val."
        )
    return images
