"""A run under way: its method is built and trained on a few images, then tested."""

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dear.backbone.clip import Clip, fill
from dear.backbone.names import HALF
from dear.data.dataset import Dataset, Images
from dear.data.fewshot import ClassSubset, Pick, Unlabeled, draw_few
from dear.errors import DataError, SettingsError
from dear.evaluation.environment import start_counting
from dear.evaluation.joint import Tested, score_jointly
from dear.evaluation.metrics import Scores, compute_scores, evaluate
from dear.evaluation.predictions import ImagePredictions, predict
from dear.evaluation.resolve import ResolvedRun
from dear.evaluation.session import Session
from dear.methods.base import Method
from dear.methods.declaration import MethodSettings
from dear.methods.optional import HasTeacher, ResizesTensors
from dear.methods.registry import build_method, frozen_clip
from dear.progress import OnStep, TrainingStep, silent
from dear.training.loop import train
from dear.training.seeding import generator
from dear.writing import PART


@dataclass(eq=False)
class Trial:
    """A method that is trained once, by `train`, and then tested: a protocol calls `test` for each part of
    its results. The constructor builds the method, without classes, and raises as `build_untrained`.

    Attributes:
        checkpoint: File from which interrupted training resumes, if any.
        shares_training: Take the trained state from a run with the same training if the session has it, or
            keep it there.
        method: The method; trained once `train` has returned.
        pick: The few-shot images that it was trained on; None if it does not train.
        epochs: What was logged of each epoch.
        epoch_tested: The epoch in whose state it is; None if it takes no steps.
        teacher: The training of its teacher, which comes before its own; None without one.
        predictions: The predictions for all test images, by part of the results: base, or targets/NAME.
        train_seconds: Seconds spent on its training and its teacher's, also before an interruption, or by the
            run that made a training that it shares.
        test_seconds: Seconds spent in `test` and `test_jointly`.
        trained_classes: The classes that the method was set to in training.
        tried: The settings among which validation images chose, each with its accuracy on them ("val") and
            its best epoch.
    """

    session: Session
    run: ResolvedRun
    checkpoint: Path | None = None
    progress: OnStep = silent
    shares_training: bool = False
    pick: Pick | None = field(default=None, init=False)
    epochs: list[dict[str, Any]] = field(default_factory=list, init=False)
    epoch_tested: int | None = field(default=None, init=False)
    teacher: "Trial | None" = field(default=None, init=False)
    predictions: dict[str, ImagePredictions] = field(default_factory=dict, init=False)
    train_seconds: float = field(default=0.0, init=False)
    test_seconds: float = field(default=0.0, init=False)
    trained_classes: list[int] = field(default_factory=list, init=False)
    tried: list[dict[str, Any]] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        self.method: Method = build_untrained(self.session, self.run)
        self._method_is_set_to: tuple[tuple[str, ...], tuple[str, ...], MethodSettings] | None = None

    @property
    def source(self) -> Dataset:
        """The data set that is trained on."""
        return self.run.source

    @property
    def targets(self) -> tuple[Dataset, ...]:
        """The other data sets that are tested on."""
        return self.run.targets

    def train(self, classes: Sequence[int]) -> None:
        """Train the method on a few images of each of these classes.

        A teacher is trained on these images first. A method that trains without labels is then trained on all
        training images of the data set; its classes are all of them, the given ones first. Raises DataError
        if validation images are asked for and there are none.
        """
        start_counting(self.method.clip.image.projection.device)
        run, dataset = self.run, self.source
        if run.teacher is not None:
            checkpoint = self.checkpoint and _teacher_checkpoint(self.checkpoint)
            self.teacher = Trial(self.session, run.teacher, checkpoint, self.progress, shares_training=True)
            self.teacher.train(classes)
            self.train_seconds = self.teacher.train_seconds
            assert isinstance(self.method, HasTeacher), "as its declaration says"
            self.method.set_teacher(self.teacher.method)
        started, epochs_made = time.perf_counter(), 0

        def count_epochs(step: TrainingStep) -> None:
            nonlocal epochs_made
            epochs_made += step.ends_epoch
            self.progress(step)

        others = [label for label in range(len(dataset.classnames)) if label not in classes]
        self.trained_classes = [*classes, *(others if run.setup.declared.unlabeled else ())]
        self._set_classes(dataset, self.trained_classes)
        if not run.setup.declared.trains:
            return
        self.pick, picked = draw_few(dataset, run.shots, run.seed, classes)
        if not self._load_shared():
            self.epochs = train(
                self.method,
                Unlabeled(dataset.train) if run.setup.declared.unlabeled else picked,
                run.training,
                seed=run.seed,
                cache=self.session.cache,
                checkpoint=self.checkpoint,
                validate=self._validation(classes),
                progress=count_epochs,
            )
            resumed = self.epochs[: len(self.epochs) - epochs_made]
            own_seconds = time.perf_counter() - started + sum(epoch["seconds"] for epoch in resumed)
            self.train_seconds += own_seconds
            if self.shares_training:
                state = {name: tensor.detach().clone() for name, tensor in self.method.state_dict().items()}
                self.session.trained[run.training_key] = state, self.epochs, own_seconds
        self.epoch_tested = len(self.epochs) or None
        if run.select == "val" and self.epochs:
            best = max(self.epochs, key=lambda epoch: (epoch["val"], -epoch["epoch"]))
            self.epoch_tested = best["epoch"]

    def validate(self, classes: Sequence[int]) -> float:
        """The accuracy of the trained method on the validation images of its training classes."""
        return self._accuracy_on(validation_images(self.source, classes))

    def trained_tensors(self) -> dict[str, Tensor]:
        """The tensors that the trained method is loaded from again, with its classes of training."""
        self._set_classes(self.source, self.trained_classes)
        return copy_stored(self.method)

    def test(
        self,
        dataset: Dataset,
        classes: Sequence[int],
        *,
        part: str,
        trained: bool = True,
        keep_features: bool = False,
    ) -> Tested:
        """Test on the images of some classes, among these classes, and keep the predictions as a ``part`` of
        the results. ``trained`` is False if the method was trained on other classes or other data: it may
        score these by the class feature alone. ``keep_features`` is needed before `test_jointly`.
        """
        started = time.perf_counter()
        self.session.cache.begin(dataset.identity)
        self._set_classes(dataset, classes)
        all_classes = len(classes) == len(dataset.classnames)
        images = dataset.test if all_classes else ClassSubset(dataset.test, classes)
        predictions = predict(
            self.method,
            images,
            cache=self.session.cache,
            precision=self.run.training.precision,
            decoupled=self.run.decouples and not trained,
            keep_features=keep_features,
        )
        scores = asdict(compute_scores(predictions, Scores))
        self.test_seconds += time.perf_counter() - started
        self.predictions[part] = ImagePredictions.of(predictions, images)
        return Tested(scores, predictions, images)

    def test_jointly(self, *parts: Tested) -> list[dict[str, Any]]:
        """`score_jointly` for parts of the source, of which the first has the classes of training."""
        started, source, precision = time.perf_counter(), self.source, self.run.training.precision
        names = [name for part in parts for name in part.predictions.classes]
        self._set_classes(source, [source.classnames.index(name) for name in names])
        scores = score_jointly(
            self.method,
            parts,
            frozen=frozen_clip(self.session.in_precision(self.run.clip, precision)),
            templates=source.templates,
            cache=self.session.cache,
            precision=precision,
            decoupled=self.run.decouples,
        )
        self.test_seconds += time.perf_counter() - started
        return scores

    def _load_shared(self) -> bool:
        """Take the state from an earlier run with the same training, if there is one."""
        if not self.shares_training or self.run.training_key not in self.session.trained:
            return False
        state, self.epochs, seconds = self.session.trained[self.run.training_key]
        self.train_seconds += seconds
        if isinstance(self.method, ResizesTensors):
            self.method.resize_to(state)
        self.method.load_state_dict(state)
        return True

    def _set_classes(self, dataset: Dataset, labels: Sequence[int]) -> None:
        """Set the method's classes, unless it has them already."""
        names, settings = tuple(dataset.classnames[label] for label in labels), self.run.settings_for(dataset)
        classes = names, tuple(dataset.templates), settings
        if self._method_is_set_to != classes:
            self.method.settings = settings
            self.method.set_classes(names, dataset.templates)
            self._method_is_set_to = classes

    def _validation(self, classes: Sequence[int]) -> Callable[[], float] | None:
        """Accuracy on the validation images of the training classes, if the epoch is selected by it."""
        if self.run.select == "last":
            return None
        return partial(self._accuracy_on, validation_images(self.source, classes))

    def _accuracy_on(self, images: Images) -> float:
        precision = self.run.training.precision
        return evaluate(self.method, images, cache=self.session.cache, precision=precision).accuracy


def copy_stored(method: Method) -> dict[str, Tensor]:
    """Copies of the tensors that a bundle of a method stores; in float32 if trained in float16."""
    return {
        name: tensor.detach().to(torch.float32 if tensor.dtype == torch.float16 else tensor.dtype, copy=True)
        for name, tensor in method.stored_tensors().items()
    }


def teacher_facts(run: ResolvedRun) -> dict[str, Any]:
    """How a method's teacher was trained, for a record or a bundle."""
    return {
        "method": run.setup.method,
        "settings": {"method": asdict(run.settings), "train": run.used_training},
        "weights": run.weights,
    }


def remove_checkpoints(checkpoint: Path) -> None:
    """Remove the checkpoints of a finished run, of its candidates and of teachers, where they exist, and what
    killed processes left of them.
    """
    for end in (".pt", PART):
        for path in checkpoint.parent.glob(f"{checkpoint.stem}*{end}"):
            path.unlink(missing_ok=True)


def _teacher_checkpoint(checkpoint: Path) -> Path:
    """The checkpoint of a teacher's training, beside that of the method that it teaches."""
    return checkpoint.with_name(f"{checkpoint.stem}-teacher.pt")


def build_untrained(session: Session, run: ResolvedRun) -> Method:
    """A run's method before training, without classes. Raises DearError for settings that do not suit the
    backbone, SettingsError for a method that cannot score the classes of the protocol and for an optimizer
    that cannot train in the precision.
    """
    method = build_method(
        run.setup.method,
        session.in_precision(run.clip, run.training.precision),
        generator(run.seed, "parameters"),
        roles=run.table,
        settings=run.settings,
    )
    if run.protocol.needs_open_vocabulary and not method.open_vocabulary:
        raise SettingsError(
            f"{run.setup.method} with these settings cannot score classes it was not trained on: "
            "run it with few-shot, or change the settings."
        )
    training = run.training
    if (
        training.precision == HALF
        and training.optimizer != "sgd"
        and run.setup.declared.takes_steps(run.settings)
    ):
        raise SettingsError(
            f"{run.setup.method} is trained with {training.optimizer}, whose squares of gradients are too "
            f"small for float16: use --train.optimizer sgd, or another precision than {HALF}."
        )
    return method


def check_prompts(session: Session, run: ResolvedRun, name: str, templates: Sequence[str]) -> None:
    """Check that the settings of a run's method, and of its teacher's if it has one, suit the backbone and a
    class name. Raises as `build_untrained`, and SettingsError for a prompt that does not fit.
    """
    build_untrained(session, run).set_classes([name], templates)
    if run.teacher is not None:
        check_prompts(session, run.teacher, name, templates)


def find_longest_name(clip: Clip, names: Sequence[str]) -> int:
    """The index of the class name with the most tokens."""
    return int(clip.words_in(fill("{}", names)).argmax())


def validation_images(dataset: Dataset, classes: Sequence[int]) -> ClassSubset:
    """The validation images of some classes, for selecting an epoch. Raises DataError if there are none."""
    if dataset.val is None:
        raise DataError(
            f"{dataset.name} has no validation images to select an epoch or settings with: add some, such "
            "as a folder val/CLASS, or omit --select val."
        )
    images = ClassSubset(dataset.val, classes)
    if not len(images):
        raise DataError(
            f"{dataset.name} has no validation images of the training classes: omit --select val."
        )
    return images
