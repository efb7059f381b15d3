"""Cross-validation on training images: the scores of each by a method that was fitted without it. From them
come the choice of a method, the accuracy that a fit promises, the review of labels and the calibration.

A picture is left out with all its copies (an image that `--dataset.balance` repeats, files of the same bytes)
and with all that are in a group with it, such as near-duplicates.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import median

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from dear.backbone.device import mixed
from dear.data.dataset import Images
from dear.data.fewshot import Subset, draw_few, items_by_class
from dear.data.images.photos import distinct_pictures, group_names
from dear.errors import SettingsError, warn
from dear.evaluation.resolve import MethodSetup, ResolvedRun
from dear.evaluation.session import Session
from dear.evaluation.trial import Trial
from dear.methods.base import Method, TrainingImages
from dear.methods.optional import (
    LearnsUnlabeled,
    LeavesOut,
    UsesAllImages,
    keep_known_scores,
)
from dear.methods.registry import FROZEN
from dear.methods.shared import order_by_name
from dear.text import fingerprint
from dear.training.batches import training_images, view_key

FOLDS, REPEATS = 5, 3
"""Parts of each class that are left out in turn, where classes have so many pictures, and the times that they
are parted anew at most."""
ENOUGH = 100
"""Left-out pictures, counted each time, after which they are not parted anew."""
MOST_SCORES = 20_000_000
"""Pictures x classes that are scored. With more, so many pictures are left out in turn, drawn at random, and
the others stay in all fits: the scores of all would not fit into memory."""

Part = tuple[Bool[Tensor, "class"], Bool[Tensor, "picture"], Float[Tensor, "left_out class"]]
"""The classes treated as if they had no images, the pictures that are left out, and their scores."""


@dataclass(frozen=True)
class LeftOutScores:
    """The scores of pictures, each by a method that was fitted without it, in several ways of parting them.

    Attributes:
        method: The method.
        judged: The pictures, as indices of `LeftOut.pictures`.
        folds: The part in which each was left out.
        groups: The number of each picture's group.
    """

    method: str
    judged: Int[Tensor, "judged"]
    scores: Float[Tensor, "way judged class"]
    labels: Int[Tensor, "judged"]
    folds: Int[Tensor, "way judged"]
    groups: Int[Tensor, "judged"]

    @property
    def mean(self) -> Float[Tensor, "judged class"]:
        """The mean scores of each picture over the ways."""
        return self.scores.mean(dim=0)

    @property
    def right(self) -> Float[Tensor, "judged"]:
        """In what share of the ways each picture is right."""
        return (self.scores.argmax(dim=2) == self.labels).double().mean(dim=0)


class LeftOut:
    """The training images of a data set, to be left out in turn.

    Attributes:
        images: All training images that were drawn, with copies.
        pictures: The first of each picture; one with two labels is there with each.
        labels: The classes of these.
        tested: The pictures that are left out in turn: their class has others, and they are not too many.
        named_only: The share of classes without images.
    """

    def __init__(self, session: Session, run: ResolvedRun, unlabeled: Images | None = None) -> None:
        """Prepare the leave-out folds of a run, whatever its method. ``unlabeled`` are images without labels
        that a method may learn from too.
        """
        self.session, self.run, self.dataset, self.unlabeled = session, run, run.source, unlabeled
        seed, classes = run.seed, len(run.source.classnames)
        self.images: Images = draw_few(run.source, run.shots, seed, range(classes))[1]
        names, labels = group_names(self.images), self.images.labels.cpu()
        numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
        self._number = torch.tensor([numbers[name] for name in names])
        self._first = distinct_pictures(self.images)
        self.pictures = Subset(self.images, self._first)
        self.labels = labels[self._first]
        self.named_only = 1 - len(self.labels.unique()) / classes
        distinct = [names[item] for item in self._first.tolist()]
        counts = Counter(label for label, _ in {*zip(self.labels.tolist(), distinct, strict=True)})
        several = [count for count in counts.values() if count > 1]
        self._folds = min(FOLDS, int(median(several))) if several else 0  # so that all classes lose as much
        self._scored = draw_names(distinct, max(1, MOST_SCORES // classes), f"{seed}")
        self._fold_of = [
            draw_folds(self.labels, distinct, self._folds, f"{seed} {number}").where(self._scored, -1)
            for number in range(REPEATS)
        ]
        self.tested = self._fold_of[0] >= 0
        if not self._scored.all():
            warn(
                "so many images and classes are not all left out in turn: accuracy, temperature and review "
                f"are of {int(self.tested.sum()):,} of {len(self.labels):,} images, drawn at random"
            )
        self._trunks = dict[int, Tensor]()

    def rounds(self) -> list[Bool[Tensor, "picture"]]:
        """The pictures that are left out together: each once, and again in other parts until there are
        `ENOUGH`.
        """
        return [fold_of == fold for fold_of in self._ways for fold in range(self._folds)]

    @property
    def _ways(self) -> list[Int[Tensor, "picture"]]:
        """The fold of each picture in each way in which they are parted."""
        tested = int(self.tested.sum())
        return [fold_of for way, fold_of in enumerate(self._fold_of) if not way or way * tested < ENOUGH]

    @property
    def groups(self) -> Int[Tensor, "picture"]:
        """The number of each picture's group."""
        return self._number[self._first]

    def build(self, setup: MethodSetup) -> Trial:
        """An untrained method with its settings."""
        return Trial(self.session, self.session.complete(replace(self.run, setup=setup)))

    def scores(self, trial: Trial) -> LeftOutScores:
        """Those of a trial's method with its settings. A method that is fitted to no image has seen none.

        Raises SettingsError for a method that takes long to fit, for scores that are not finite and, as other
        DearErrors of the method do, if it cannot be fitted to fewer images.
        """
        declared, setup = trial.run.setup.declared, trial.run.setup
        tested = self.tested if declared.trains else self._scored
        rounds = self.rounds() if declared.trains else [tested]
        ways = max(1, len(rounds) // max(1, self._folds)) if declared.trains else 1
        judged = tested.nonzero().flatten()
        scores = torch.zeros(ways, len(judged), len(self.dataset.classnames), dtype=torch.float64)
        folds = torch.stack(self._fold_of[:ways])
        for number, (_, left_out, part) in enumerate(self.leave_out(trial, rounds)):
            way = number // max(1, self._folds)
            scores[way, left_out[tested]] = part.double().cpu()
        if not scores.isfinite().all():
            raise SettingsError(f"{setup.method} predicts NaN or infinity for images that are left out.")
        of_tested = self.labels[tested], folds[:, tested], self.groups[tested]
        return LeftOutScores(setup.method, judged, scores, *of_tested)

    def part_anew(self, scores: LeftOutScores) -> LeftOutScores:
        """The scores of a method that was fitted to no image, as if it had been fitted in each part."""
        folds = torch.stack(self._ways)[:, self.tested]
        rows = torch.isin(scores.judged, self.tested.nonzero().flatten())
        judged = scores.scores[:1, rows].expand(len(folds), -1, -1)
        of_rows = scores.judged[rows], judged, scores.labels[rows], folds, scores.groups[rows]
        return LeftOutScores(scores.method, *of_rows)

    def leave_out(
        self,
        trial: Trial,
        rounds: Sequence[Bool[Tensor, "picture"]],
        absent: Sequence[Bool[Tensor, "class"]] = (),
    ) -> Iterator[Part]:
        """The scores of left-out pictures with all classes, or with each of two halves of them ``absent``:
        treated as if they had no images (`absent_classes`). The method is fitted again without the pictures
        of each round. Raises as `scores`.
        """
        setup, declared = trial.run.setup, trial.run.setup.declared
        if not declared.cheap or declared.takes_steps(trial.method.settings):
            raise SettingsError(
                f"{setup.method} is trained in steps, which takes too long to do it again without images"
            )
        absent = absent or [torch.zeros(len(self.dataset.classnames)).bool()]
        if trial.pick is not None:  # it keeps what it is
            trial = Trial(self.session, trial.run)
        method, images = trial.method, self._training_images(trial)
        items = self._first if isinstance(method, LeavesOut) else torch.arange(len(self.images))
        keep_known_scores(method)
        method.set_classes(self.dataset.classnames, self.dataset.templates)
        labels, place = self.images.labels.cpu()[items], torch.searchsorted(items, self._first)
        for without in absent:
            for left_out in rounds:
                if declared.trains:
                    few = _select(
                        images, (~self._in_groups_of(left_out)[items] & ~without[labels]).nonzero().flatten()
                    )
                    assert isinstance(method, UsesAllImages), "it takes no steps"
                    method.before_training(few)
                    if self.unlabeled is not None and isinstance(method, LearnsUnlabeled):
                        method.add_unlabeled(few, self._read(trial, self.unlabeled))
                yield without, left_out, _compute_scores(method, images, place[left_out])

    def _in_groups_of(self, left_out: Bool[Tensor, "picture"]) -> Bool[Tensor, "item"]:
        """Which images are of the groups of some pictures, copies of these among them."""
        return torch.isin(self._number, self._number[self._first[left_out]])

    @torch.no_grad()
    def frozen_features(self) -> Float[Tensor, "picture embed"]:
        """The unit image features of the frozen backbone."""
        trial = self.build(MethodSetup(FROZEN))
        trunk = self._trunk(trial)
        parts = trunk[self._first.to(trunk.device)].split(trial.method.clip.image.images_at_once)
        return torch.cat([trial.method.frozen_image(part) for part in parts])

    def _read(self, trial: Trial, images: Images) -> TrainingImages:
        return training_images(trial.method, images, trial.run.training, self.run.seed, self.session.cache)

    def _training_images(self, trial: Trial) -> TrainingImages:
        """The images of a method, each view of which is read once."""
        images, views = self._read(trial, self.images), dict[int | None, Tensor]()
        items = self._first if isinstance(trial.method, LeavesOut) else torch.arange(len(self.images))

        def view(number: int | None) -> Tensor:
            if number not in views:
                is_shared = number is None and not trial.method.readout_key
                views[number] = self._trunk(trial)[items] if is_shared else images.view(number)
                if number is None and not is_shared:
                    self._keep_trunk(trial)
            return views[number]

        return TrainingImages(images.labels, view, images.groups)

    def _keep_trunk(self, trial: Trial) -> None:
        """Let later methods go on from the trunk outputs of this one, if they are at hand."""
        method = trial.method
        trunk = self.session.cache.find("trunk", view_key(method, self.images, trial.run.training.precision))
        if trunk is not None and len(trunk) == len(self.images):
            self._trunks.setdefault(method.image_from, trunk)

    @torch.no_grad()
    def _trunk(self, trial: Trial) -> Float[Tensor, "item token width"]:
        """The method's trunk outputs of all images, continued from those of an earlier layer if there are
        any.
        """
        method, precision = trial.method, trial.run.training.precision
        layer = method.image_from
        earlier = max((known for known in self._trunks if known <= layer), default=None)
        if earlier is None:
            self._trunks[layer] = training_images(
                method, self.images, trial.run.training, self.run.seed, self.session.cache, with_copies=True
            ).view(None)
        elif earlier < layer:
            parts = self._trunks[earlier].split(method.clip.image.images_at_once)
            with mixed(parts[0].device, precision):
                continued = torch.cat([method.continue_trunk(part, earlier) for part in parts])
            self._trunks[layer] = continued.to(method.clip.image.projection)
        return self._trunks[layer]


def draw_folds(
    labels: Int[Tensor, "item"], names: Sequence[str], folds: int, seed: str
) -> Int[Tensor, "item"]:
    """The fold of each item: those of a class are spread over the folds, items of the same of the ``names``
    together; an only one is in none (-1). It depends on the names alone, not on their order or that of
    classes.
    """
    fold_of, draws = torch.full_like(labels, -1), [int(fingerprint(seed, name), 16) for name in names]
    for items in items_by_class(labels):
        places = {draw: place for place, draw in enumerate(sorted({draws[item] for item in items.tolist()}))}
        for item in items.tolist() if len(places) > 1 else ():
            fold_of[item] = (places[draws[item]] + min(places)) % folds
    return fold_of


def draw_names(names: Sequence[str], most: int, seed: str) -> Bool[Tensor, "item"]:
    """All items, or about ``most`` of them at random: items of the same name are drawn together, and their
    order does not matter.
    """
    if len(names) <= most:
        return torch.ones(len(names)).bool()
    draws = {name: int(fingerprint(seed, "scored", name), 16) for name in {*names}}
    last = sorted(draws[name] for name in names)[most - 1]
    return torch.tensor([draws[name] <= last for name in names])


def absent_classes(classnames: Sequence[str]) -> list[Bool[Tensor, "class"]]:
    """Every other class in `order_by_name`, then the others."""
    odd = order_by_name(classnames) % 2 == 1
    return [~odd, odd]


def _select(images: TrainingImages, rows: Int[Tensor, "row"]) -> TrainingImages:
    """Some of the training images, in the same views."""
    rows = rows.to(images.labels.device)
    groups = None if images.groups is None else images.groups[rows.to(images.groups.device)]
    return TrainingImages(images.labels[rows], lambda view: images.view(view)[rows], groups)


@torch.no_grad()
def _compute_scores(
    method: Method, images: TrainingImages, rows: Int[Tensor, "row"]
) -> Float[Tensor, "row class"]:
    """The scores of the test view of some images among the method's classes."""
    readouts = images.view(None)
    parts = readouts[rows.to(readouts.device)].split(method.clip.image.images_at_once)
    features = torch.cat([method.image_features(part) for part in parts], dim=1)
    return method.logits(features, method.text_features())
