"""Choose a method by the training images of a data set: each candidate classifies images that it was not
fitted on, and the simplest of those that are as good as the best wins. No test image takes part.

The features of the images in the test view are computed once. A method that has the scores of left-out images
in closed form gives them (`Method.left_out_scores`); any other is fitted again without a fold of images.
"""

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import product
from statistics import median
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from dear.backbone.precision import mixed
from dear.data.dataset import Dataset, Images
from dear.data.fewshot import draw_few, items_by_class
from dear.errors import DearError
from dear.evaluation.protocols.few_shot import FewShot
from dear.evaluation.resolve import MethodSetup
from dear.evaluation.run_context import RunContext
from dear.evaluation.trial import Trial
from dear.methods.base import Method, TrainingImages
from dear.methods.registry import FIT_METHOD, FROZEN, METHODS, SIMPLEST_FIRST, check_towers, method_class
from dear.methods.shared import order_by_name
from dear.progress import Progress, silent
from dear.report.intervals import share_interval
from dear.review.unlabelled import add_unlabelled
from dear.training.batches import training_images, view_key
from dear.training.seeding import generator

FOLDS, REPEATS = 5, 3
"""Parts of each class that are left out in turn, where classes have so many images, and the times that it is
parted anew at most."""
ENOUGH = 1000
"""Left-out images, counted each time, after which no more folds are tried."""
FEWEST = 100
"""Images that can be left out from which there is a choice. With fewer, the standard error of an accuracy may
be above 5 points. Set after 20 had failed on test images (recipes/study/PREDICTIONS.md).
"""

LeftOut = tuple[Bool[Tensor, "class"], Bool[Tensor, "item"], Float[Tensor, "left_out class"]]
"""The classes treated as if they had no images, the images that are left out, and their scores."""


@dataclass(frozen=True)
class Candidate:
    """A method that was tried.

    Attributes:
        accuracy: Share of left-out images that it classifies correctly; None if it cannot be fitted to these.
        low, high: The interval of the accuracy, at 95%.
        seconds: What it took, with the features that it was the first to need.
        reason: Why it cannot be fitted.
    """

    method: str
    accuracy: float | None = None
    low: float | None = None
    high: float | None = None
    seconds: float = 0.0
    reason: str = ""


@dataclass(frozen=True)
class Choice:
    """The method for a data set.

    Attributes:
        reason: Why this one, to follow its name.
        candidates: What was tried, the simplest first; nothing with too few images.
        images: How many training images were left out at least once.
        trial: The training of the method on all images, where the choice needed it.
    """

    method: str
    reason: str
    candidates: tuple[Candidate, ...] = ()
    images: int = 0
    trial: Trial | None = field(default=None, compare=False, repr=False)

    def facts(self) -> dict[str, Any]:
        """What a bundle holds of it, as plain values."""
        return {"chosen": self.reason, "candidates": [asdict(candidate) for candidate in self.candidates]}


def choose_method(
    context: RunContext,
    dataset: Dataset,
    shots: int,
    seed: int,
    *,
    methods: Sequence[str] | None = None,
    others: Images | None = None,
    progress: Progress = silent,
) -> Choice:
    """Choose among ``methods``, the simplest first; by default among all that the backbone can take.

    Where some classes of the data set have only names, each half of the classes is treated so in turn, and
    the accuracy on it counts by the share of classes with only names. A method that is able to also learns
    from ``others``, which have no labels.
    """
    names = list_candidates(context) if methods is None else [*methods]
    judge = Judge(context, dataset, shots, seed, others)
    images = int(judge.tested.sum())
    if images < FEWEST:
        default = FIT_METHOD if FIT_METHOD in names else names[-1]
        return Choice(default, f"the default: {images} training images can be left out, too few to choose by")
    candidates, shares = dict[str, Candidate](), dict[str, Float[Tensor, "tested"]]()
    for number, name in enumerate(reversed(names)):  # those with the longest span first
        progress("choosing a method", number, len(names))
        candidates[name], of_images = judge.assess(name)
        if of_images is not None:
            shares[name] = of_images
    progress("choosing a method", len(names), len(names))
    method, reason = pick_simplest({name: shares[name] for name in names if name in shares})
    trial = judge.trained.get(method)
    return Choice(method, reason, tuple(candidates[name] for name in names), images, trial)


def list_candidates(context: RunContext) -> list[str]:
    """The methods that the backbone can take, the simplest first."""
    others = [
        name for name, declared in METHODS.items() if declared.module and method_class(name).cheap is not None
    ]
    names = []
    for name in (*SIMPLEST_FIRST, *others):
        try:
            check_towers(name, context.clip)
        except DearError:
            continue
        names.append(name)
    return names


def pick_simplest(shares: Mapping[str, Float[Tensor, "item"]]) -> tuple[str, str]:
    """The first of some methods that is at most one standard error below the best, and why. ``shares`` are of
    correct scores of each image; the error is that of the mean difference from the best.
    """
    best = max(shares, key=lambda name: float(shares[name].mean()))

    def is_as_good(name: str) -> bool:
        behind = shares[best] - shares[name]
        return bool(behind.mean() <= behind.std() / math.sqrt(len(behind)))

    method = next(name for name in shares if is_as_good(name))
    how = "the best" if method == best else f"the simplest within one standard error of the best, {best},"
    return method, f"{how} on left-out training images"


def draw_folds(labels: Int[Tensor, "item"], folds: int, draw: torch.Generator) -> Int[Tensor, "item"]:
    """The fold of each image: those of a class are spread over the folds; an only one is in none (-1)."""
    fold_of = torch.full_like(labels, -1)
    for items in items_by_class(labels):
        if len(items) > 1:
            start = int(torch.randint(folds, (1,), generator=draw))
            order = torch.randperm(len(items), generator=draw)
            fold_of[items[order]] = (torch.arange(len(items)) + start) % folds
    return fold_of


class Judge:
    """What the candidates are tried on.

    Attributes:
        named_only: The share of classes without images.
        absent: The classes treated as if they had no images, in each setting: none in the only one, or
            those of even place in `order_by_name` in the first and of odd place in the second.
        rounds: The images that are left out together.
        tested: The images that are left out at least once.
        trained: The candidates that were trained on all images.
    """

    def __init__(
        self,
        context: RunContext,
        dataset: Dataset,
        shots: int,
        seed: int,
        others: Images | None = None,
        *,
        once: bool = False,
    ) -> None:
        """With ``once`` each image is left out once, and no class counts as one without images."""
        self.context, self.dataset, self.shots, self.seed = context, dataset, shots, seed
        self.others = others
        classes = len(dataset.classnames)
        self.images: Images = draw_few(dataset, shots, seed, range(classes))[1]
        self.labels = self.images.labels
        self.named_only = 1 - len(self.labels.unique()) / classes
        odd = order_by_name(dataset.classnames) % 2 == 1
        self.absent = [~odd, odd] if self.named_only and not once else [torch.zeros_like(odd)]
        several = [count for count in self.labels.bincount().tolist() if count > 1]
        folds = min(FOLDS, int(median(several))) if several else 0  # so that all classes lose as much
        self.rounds, draw = list[Tensor](), generator(seed, "choice of a method")
        for fold_of in [draw_folds(self.labels, folds, draw) for _ in range(1 if once else REPEATS)]:
            for fold in range(folds):
                if once or sum(int(left_out.sum()) for left_out in self.rounds) < ENOUGH:
                    self.rounds.append(fold_of == fold)
        self.tested = torch.stack([*self.rounds, torch.zeros_like(self.labels).bool()]).any(dim=0)
        self.trained = dict[str, Trial]()
        self._trunks = dict[int, Tensor]()

    def assess(self, name: str) -> tuple[Candidate, Float[Tensor, "tested"] | None]:
        """A candidate, and its share of correct scores on each tested image; None if it cannot be fitted."""
        started = time.perf_counter()
        # Rows: without images of the class, and with.
        correct = torch.zeros(2, len(self.labels), dtype=torch.float64)
        times = torch.zeros_like(correct)
        try:
            for absent, left_out, scores in self.leave_out(self.untrained(name)):
                if not scores.isfinite().all():
                    return Candidate(name, reason="its scores are not finite numbers"), None
                rows = left_out.nonzero().flatten()
                labels = self.labels[rows]
                kind = (~absent[labels]).long()
                correct[kind, rows] += (scores.argmax(dim=1).cpu() == labels).double()
                times[kind, rows] += 1
        except DearError as error:
            return Candidate(name, reason=str(error)), None
        absent_share, known_share = (correct / times.clamp(min=1))[:, self.tested]
        if self.named_only and not absent_share.any():
            return Candidate(name, reason="it names no class without images"), None
        shares = torch.lerp(known_share, absent_share, self.named_only)
        accuracy, images = float(shares.mean()), len(shares)
        low, high = share_interval(round(accuracy * images), images)
        return Candidate(name, accuracy, low, high, time.perf_counter() - started), shares

    def untrained(self, name: str) -> Trial:
        """A method with the settings that it is tried with."""
        setup = MethodSetup(name, method_class(name).cheap or {})
        run = self.context.resolve(FewShot(), [self.dataset], setup, seed=self.seed, shots=self.shots)
        return Trial(self.context, run)

    def leave_out(self, trial: Trial) -> Iterator[LeftOut]:
        """The scores of left-out images in each setting."""
        method, declared = trial.method, trial.run.setup.declared
        if type(method).left_out_scores is not Method.left_out_scores:
            if trial.pick is None:
                trial.train(range(len(self.dataset.classnames)))
            if self.others is not None:
                trial.unlabelled = add_unlabelled(trial, self.others)
            if not method.cheap:  # {}: it has its default settings, so that its training can be used
                self.trained[trial.run.setup.method] = trial
            key = view_key(method, self.images, trial.run.training.precision)
            if (trunk := self.context.cache.find("trunk", key)) is not None:  # where others can go on
                self._trunks.setdefault(method.image_from, trunk)
            settings = method.left_out_scores()
            settings = settings[:2] if len(self.absent) == 2 else settings[2:]
            for absent, scores in zip(self.absent, settings, strict=True):
                yield absent, self.tested, scores[self.tested.to(scores.device)]
            return
        trunk = self._trunk(trial)
        labels = self.labels.to(trunk.device)
        method.set_classes(self.dataset.classnames, self.dataset.templates)
        for absent, left_out in product(self.absent, self.rounds if declared.trains else [self.tested]):
            if declared.trains:
                rows = (~left_out & ~absent[self.labels]).nonzero().flatten().to(trunk.device)
                method.before_training(_with_one_view(trunk[rows], labels[rows]))
            yield absent, left_out, _compute_scores(method, trunk[left_out.to(trunk.device)])

    @torch.no_grad()
    def frozen_features(self) -> Float[Tensor, "item embed"]:
        """The unit image features of the frozen backbone."""
        trial = self.untrained(FROZEN)
        parts = self._trunk(trial).split(trial.method.clip.image.images_at_once)
        return torch.cat([trial.method.frozen_image(part) for part in parts])

    @torch.no_grad()
    def _trunk(self, trial: Trial) -> Float[Tensor, "item token width"]:
        """The method's trunk outputs of all images, continued from those of an earlier layer if there are
        any.
        """
        method, training, cache = trial.method, trial.run.training, self.context.cache
        layer = method.image_from
        earlier = max((known for known in self._trunks if known <= layer), default=None)
        if earlier is None:
            images = training_images(method, self.images, training, self.seed, cache)
            self._trunks[layer] = images.view(None)
        elif earlier < layer:
            parts = self._trunks[earlier].split(method.clip.image.images_at_once)
            with mixed(parts[0].device, training.precision):
                continued = torch.cat([method.continue_trunk(part, earlier) for part in parts])
            self._trunks[layer] = continued.to(method.clip.image.projection)
        return self._trunks[layer]


def _with_one_view(trunk: Float[Tensor, "item token width"], labels: Int[Tensor, "item"]) -> TrainingImages:
    """Training images of which the test view stands for all views."""
    return TrainingImages(labels, lambda _: trunk)


@torch.no_grad()
def _compute_scores(method: Method, trunk: Float[Tensor, "item token width"]) -> Float[Tensor, "item class"]:
    """The scores of images among the method's classes."""
    parts = trunk.split(method.clip.image.images_at_once)
    features = torch.cat([method.image_features(part) for part in parts], dim=1)
    return method.logits(features, method.text_features())
