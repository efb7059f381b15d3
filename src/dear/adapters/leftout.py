"""Scores of training images by a method that was fitted without them. The choice of a method, the review of
labels and the calibration of a bundle are made of them.

A picture is left out with all its copies (an image that `--dataset.balance` repeats, files of the same bytes)
and with all that are in a group with it, such as near-duplicates.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from dear.backbone.device import mixed
from dear.curation.unlabeled import add_unlabeled
from dear.data.dataset import Images, fingerprint
from dear.data.fewshot import Subset, draw_few, items_by_class
from dear.data.images.photos import distinct_pictures, group_names, picture_names
from dear.errors import SettingsError
from dear.evaluation.resolve import MethodSetup, ResolvedRun
from dear.evaluation.session import Session
from dear.evaluation.trial import Trial
from dear.methods.base import Method, TrainingImages
from dear.methods.registry import FROZEN
from dear.methods.shared import order_by_name
from dear.training.batches import training_images, view_key

FOLDS, REPEATS = 5, 3
"""Parts of each class that are left out in turn, where classes have so many pictures, and the times that they
are parted anew at most."""
ENOUGH = 1000
"""Left-out pictures, counted each time, after which no more folds are tried."""

Part = tuple[Bool[Tensor, "class"], Bool[Tensor, "picture"], Float[Tensor, "left_out class"]]
"""The classes treated as if they had no images, the pictures that are left out, and their scores."""


@dataclass(frozen=True)
class LeftOutScores:
    """The scores of pictures, each by a method that was fitted without it.

    Attributes:
        method: The method.
        judged: The pictures, as indices of `LeftOut.pictures`.
        groups: The number of groups that they are of.
    """

    method: str
    judged: Int[Tensor, "judged"]
    scores: Float[Tensor, "judged class"]
    labels: Int[Tensor, "judged"]
    groups: int


class LeftOut:
    """The training images of a data set, to be left out in turn.

    Attributes:
        images: All of them, with copies.
        pictures: The first of each picture; one with two labels is there with each.
        labels: The classes of these.
        tested: The pictures that can be left out, because their class has others.
        named_only: The share of classes without images.
    """

    def __init__(self, session: Session, run: ResolvedRun, unlabeled: Images | None = None) -> None:
        """Those of a run, whatever its method. ``unlabeled`` are images without labels that a method may
        learn from too.
        """
        self.session, self.run, self.dataset, self.unlabeled = session, run, run.source, unlabeled
        seed, classes = run.seed, len(run.source.classnames)
        self.images: Images = draw_few(run.source, run.shots, seed, range(classes))[1]
        names, labels = group_names(self.images), self.images.labels.cpu()
        numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
        self._number = torch.tensor([numbers[name] for name in names])
        self.is_grouped = len(numbers) < len({*picture_names(self.images)})
        self._first = distinct_pictures(self.images)
        self.pictures = Subset(self.images, self._first)
        self.labels = labels[self._first]
        self.named_only = 1 - len(self.labels.unique()) / classes
        distinct = [names[item] for item in self._first.tolist()]
        counts = Counter(label for label, _ in {*zip(self.labels.tolist(), distinct, strict=True)})
        several = [count for count in counts.values() if count > 1]
        self._folds = min(FOLDS, int(median(several))) if several else 0  # so that all classes lose as much
        self._fold_of = [
            draw_folds(self.labels, distinct, self._folds, f"{seed} {number}") for number in range(REPEATS)
        ]
        self.tested = self._fold_of[0] >= 0
        self._trunks = dict[int, Tensor]()

    def rounds(self, repeats: int = 1) -> list[Bool[Tensor, "picture"]]:
        """The pictures that are left out together: each once, or again in other folds until there are
        `ENOUGH`.
        """
        rounds = [fold_of == fold for fold_of in self._fold_of[:repeats] for fold in range(self._folds)]
        sums, enough = 0, list[Tensor]()
        for left_out in rounds:
            if repeats == 1 or sums < ENOUGH:
                enough.append(left_out)
            sums += int(left_out.sum())
        return enough

    def build(self, name: str) -> Trial:
        """An untrained method with its default settings."""
        return Trial(self.session, self.session.resolve(self.run, MethodSetup(name)))

    def scores(self, trial: Trial) -> LeftOutScores:
        """Those of a trial's method with its settings, each picture left out once. A method that is fitted
        to no image has seen none.

        Raises SettingsError for a method that takes long to fit, for scores that are not finite and, as other
        DearErrors of the method do, if it cannot be fitted to fewer images.
        """
        scores = torch.zeros(len(self.labels), len(self.dataset.classnames), dtype=torch.float64)
        trains, tested = trial.run.setup.declared.trains, self.tested
        tested = tested if trains else torch.ones_like(tested)
        for _, left_out, part in self.leave_out(trial, self.rounds() if trains else [tested]):
            scores[left_out] = part.double().cpu()
        if not scores.isfinite().all():
            raise SettingsError(f"{trial.method.name} gives images that are left out no numbers.")
        judged = tested.nonzero().flatten()
        groups = len(self._number[self._first[judged]].unique())
        return LeftOutScores(trial.run.setup.method, judged, scores[tested], self.labels[tested], groups)

    def leave_out(
        self,
        trial: Trial,
        rounds: Sequence[Bool[Tensor, "picture"]],
        absent: Sequence[Bool[Tensor, "class"]] = (),
        *,
        one_view: bool = False,
    ) -> Iterator[Part]:
        """The scores of left-out pictures with all classes, or with each of two halves of them ``absent``:
        treated as if they had no images (`absent_classes`).

        A method that has them in closed form gives them, from its training on all images, which is done if
        it was not; any other is fitted again without the pictures of each round. With ``one_view`` the test
        view stands for the random ones. Raises as `scores`.
        """
        method, declared = trial.method, trial.run.setup.declared
        if not method.cheap or (declared.trains and method.takes_steps):
            raise SettingsError(
                f"{method.name} is trained in steps, which takes too long to do it again without images"
            )
        absent = absent or [torch.zeros(len(self.dataset.classnames)).bool()]
        has_copies = method.counts_copies and len(self._first) < len(self.images)
        is_closed = type(method).left_out_scores is not Method.left_out_scores
        if is_closed and not has_copies:
            yield from self._closed_form(trial, absent)
            return
        if trial.pick is not None:  # it keeps what it is
            trial = Trial(self.session, trial.run)
            method = trial.method
        images = self._training_images(trial, one_view=one_view and not is_closed)
        method.spares_known = True
        method.set_classes(self.dataset.classnames, self.dataset.templates)
        for without in absent:
            for left_out in rounds:
                if declared.trains:
                    rows = (~self._is_seen(left_out) & ~without[self.images.labels.cpu()]).nonzero().flatten()
                    few = _select(images, rows)
                    method.before_training(few)
                    if self.unlabeled is not None and method.takes_unlabeled:
                        method.add_unlabeled(few, self._read(trial, self.unlabeled))
                yield without, left_out, _compute_scores(method, images, self._first[left_out])

    @property
    def groups(self) -> Int[Tensor, "picture"]:
        """The number of each picture's group."""
        return self._number[self._first]

    def _is_seen(self, left_out: Bool[Tensor, "picture"]) -> Bool[Tensor, "item"]:
        """Which images are of the groups of some pictures, copies of these among them."""
        return torch.isin(self._number, self._number[self._first[left_out]])

    def folds(self) -> list[tuple[Bool[Tensor, "picture"], Bool[Tensor, "picture"]]]:
        """Pictures that are left out together, and those of other groups, where pictures are in groups."""
        rounds = self.rounds() if self.is_grouped else []
        return [(left_out, ~self._is_seen(left_out)[self._first]) for left_out in rounds]

    def _closed_form(self, trial: Trial, absent: Sequence[Bool[Tensor, "class"]]) -> Iterator[Part]:
        if trial.pick is None:
            trial.train(range(len(self.dataset.classnames)))
            if self.unlabeled is not None:
                trial.unlabeled = add_unlabeled(trial, self.unlabeled)
        key = view_key(trial.method, self.images, trial.run.training.precision)
        if (trunk := self.session.cache.find("trunk", key)) is not None:  # where others can go on
            self._trunks.setdefault(trial.method.image_from, trunk)
        settings = trial.method.left_out_scores()
        for without, scores in zip(absent, settings[:2] if len(absent) == 2 else settings[2:], strict=True):
            yield without, self.tested, scores[self.tested.to(scores.device)]

    @torch.no_grad()
    def frozen_features(self) -> Float[Tensor, "picture embed"]:
        """The unit image features of the frozen backbone."""
        trial = self.build(FROZEN)
        trunk = self._trunk(trial)
        parts = trunk[self._first.to(trunk.device)].split(trial.method.clip.image.images_at_once)
        return torch.cat([trial.method.frozen_image(part) for part in parts])

    def _read(self, trial: Trial, images: Images) -> TrainingImages:
        return training_images(trial.method, images, trial.run.training, self.run.seed, self.session.cache)

    def _training_images(self, trial: Trial, *, one_view: bool) -> TrainingImages:
        images = self._read(trial, self.images)
        if not one_view and trial.run.setup.declared.trains:
            return images
        trunk = self._trunk(trial)
        return TrainingImages(images.labels, lambda _: trunk, images.groups)

    @torch.no_grad()
    def _trunk(self, trial: Trial) -> Float[Tensor, "item token width"]:
        """The method's trunk outputs of all images, continued from those of an earlier layer if there are
        any.
        """
        method, precision = trial.method, trial.run.training.precision
        layer = method.image_from
        earlier = max((known for known in self._trunks if known <= layer), default=None)
        if earlier is None:
            self._trunks[layer] = self._read(trial, self.images).view(None)
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
    features = torch.cat([*map(method.features_of, parts)], dim=1)
    return method.logits(features, method.text_features())
