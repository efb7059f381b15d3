"""Choose the attribute words of a method's prompts: every combination of some words competes."""

import time
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations

import torch

from dear.backbone.clip import Clip
from dear.data.dataset import Dataset, Images
from dear.data.fewshot import ClassSubset, Subset, base_novel, draw_few, pick_shots
from dear.errors import DataError
from dear.evaluation.word_settings import check_search
from dear.methods.base import Method
from dear.methods.declaration import MethodSettings
from dear.methods.registry import METHODS, build_method
from dear.training.mixture import Progress, mixture_weights
from dear.training.seeding import generator
from dear.training.settings import TrainSettings

VAL_SHOTS = 4
"""Most images of a class to choose with, as in CoOp's code."""


@dataclass(frozen=True)
class Cost:
    """What a search computes.

    Attributes:
        combinations: Combinations of words that compete.
        steps: Steps in all epochs; each trains all combinations and weighs all of them.
        prompts: Prompts that a step puts through the text tower with gradients, and again without.
        seconds: Estimate for the whole search, from one step.
    """

    combinations: int
    epochs: int
    steps: int
    prompts: int
    seconds: float


@dataclass(frozen=True)
class Weighed:
    """A combination of words with its weight in the mixture, a fraction."""

    words: tuple[str, ...]
    weight: float


@dataclass(frozen=True)
class WordSearch:
    """A search for the attribute words of a data set, on images of its base classes alone.

    The combinations learn on few-shot training images; their weights on validation images, or if the data
    set has none, on training images that are not among the few. Test images and novel classes are not used.

    Attributes:
        settings: The method's settings, whose words are replaced; None for the published ones.
        words: Candidates, of which combinations are made in this order.
        sizes: The least and the most words of a combination.
        training: Settings of training; the optimizer is SGD.
        weight_lr: Learning rate of the weights.
    """

    clip: Clip
    dataset: Dataset
    method: str
    settings: MethodSettings | None
    words: tuple[str, ...]
    sizes: tuple[int, int]
    shots: int
    seed: int
    training: TrainSettings
    weight_lr: float = 0.02

    def __post_init__(self) -> None:
        """Raise UnknownNameError for the method, SettingsError for words that cannot be combined."""
        check_search(self.method, self.words, self.sizes, self.shots, self.weight_lr)

    @cached_property
    def sets(self) -> tuple[tuple[str, ...], ...]:
        """The combinations, the shortest first."""
        least, most = self.sizes
        return tuple(one for size in range(least, most + 1) for one in combinations(self.words, size))

    @property
    def classes(self) -> range:
        """The base classes."""
        return base_novel(len(self.dataset.classnames))[0]

    @cached_property
    def images(self) -> tuple[Images, Images]:
        """Images to train on and images to choose with. Raises DataError if there are too few."""
        pick, few = draw_few(self.dataset, self.shots, self.seed, self.classes)
        pool = self.dataset.val
        if pool is None or not len(pool):
            left = sorted({*range(len(self.dataset.train))} - {*pick.indices})
            pool = Subset(self.dataset.train, torch.tensor(left, dtype=torch.long))
        held = ClassSubset(pool, self.classes)
        if not len(held):
            raise DataError(
                f"{self.dataset.name} has no validation images of its base classes, and all training images "
                "of them are used for training: use fewer --shots."
            )
        chosen = pick_shots(held.labels, min(self.shots, VAL_SHOTS), self.seed, allow_fewer=True)
        return few, Subset(held, chosen)

    def methods(self) -> list[Method]:
        """A fresh variant for each combination. Raises SettingsError for words that do not fit."""
        names, templates = self.dataset.classnames, self.dataset.templates
        found = []
        for at, words in enumerate(self.sets):
            settings = (self.settings or METHODS[self.method].settings()).with_words(words)
            drawn = generator(self.seed, "words", at)
            one = build_method(self.method, self.clip, drawn, settings=settings)
            one.set_classes([names[label] for label in self.classes], templates)
            found.append(one)
        return found

    def cost(self) -> Cost:
        """The cost of the search, from one step that is not part of it. Raises as `run` does."""
        few, val = self.images
        one = replace(self.training, epochs=1, warmup_epochs=0)
        some = Subset(few, torch.arange(min(one.batch, len(few))))
        methods = self.methods()
        started = time.perf_counter()
        mixture_weights(methods, some, val, one, seed=self.seed, weight_lr=self.weight_lr)
        seconds = time.perf_counter() - started
        steps = self.training.epochs * self.training.steps(len(few))
        prompts = len(methods) * len(self.classes)
        return Cost(len(methods), self.training.epochs, steps, prompts, steps * seconds)

    def run(self, progress: Progress = lambda _epoch, _weights: None) -> list[Weighed]:
        """All combinations with their weights after the last epoch, the highest first.

        Raises DataError for too few images, SettingsError for words that do not fit, TrainingDiverged.
        """
        few, val = self.images
        history = mixture_weights(
            self.methods(),
            few,
            val,
            self.training,
            seed=self.seed,
            weight_lr=self.weight_lr,
            progress=progress,
        )
        found = [Weighed(*pair) for pair in zip(self.sets, history[-1], strict=True)]
        return sorted(found, key=lambda one: -one.weight)
