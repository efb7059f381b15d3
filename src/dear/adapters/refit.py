"""Fit a classifier again, to its data as it is by now: the new one takes its place if it is not worse."""

import shutil
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from dear.adapters.bundle import Bundle
from dear.adapters.bundle_config import check_writable, read_config
from dear.adapters.compare import (
    Comparison,
    common_classes,
    compare_predictions,
    compare_predictors,
    write_comparison,
)
from dear.adapters.facts import CROSS_VALIDATION
from dear.adapters.fit import make_fit
from dear.adapters.fit_plan import FitPlan
from dear.adapters.operating import Decided
from dear.adapters.predictor import Predictor
from dear.adapters.scoring import CrossValidation, predict_images
from dear.data.dataset import Dataset, Images
from dear.data.fewshot import Subset
from dear.data.images.photos import group_names, image_hashes, split_hashes
from dear.data.settings import DataSettings
from dear.errors import DataError, warn
from dear.evaluation.predictions import Predictions
from dear.methods.registry import AUTO
from dear.progress import Progress
from dear.reading.files import expanded
from dear.stats import LEVEL, group_share_interval, independent_difference, share_interval
from dear.text import list_names, plural, printable
from dear.training.cache import Cache, ReadoutStore
from dear.writing import PART, UNFINISHED, require_writable, temporary_folder, writing

BEFORE, NEW = ".before", ".new"
"""What is added to the name of a bundle for the one before, and for one that does not take its place."""


@dataclass(frozen=True)
class CrossValidated:
    """The accuracies that two fits promise, each by cross-validation with the labels of its time.

    Attributes:
        before, now: The shares of images that are right.
        images_before, images_now: How many images there were.
        low, high: The interval of now - before, at 95%, as if the images were others.
        interval_now: That of ``now``, at 95%, by groups.
    """

    before: float
    now: float
    images_before: int
    images_now: int
    low: float
    high: float
    interval_now: tuple[float, float]

    def __str__(self) -> str:
        interval = f"({LEVEL:.0%}: {100 * self.low:+z.1f} to {100 * self.high:+z.1f})"
        of_now = f"({LEVEL:.0%}: {self.interval_now[0]:.1%} to {self.interval_now[1]:.1%})"
        return (
            f"Cross-validated, with the labels of the time: {self.before:.1%} of "
            f"{plural(self.images_before, 'image')} before, {self.now:.1%} of {self.images_now:,} now "
            f"{of_now}: {100 * (self.now - self.before):+z.1f} points {interval}."
        )


@dataclass(frozen=True)
class Refit:
    """A classifier that was fitted again.

    Attributes:
        bundle: The folder of the new one: in the place of the present one, or beside it.
        is_replaced: True if it has taken that place.
        before: The folder of the one before, if it has.
        is_worse: True if it is clearly worse; None if there was nothing to compare on.
        comparison: Both on images that neither was fitted on: test images, or images that are new to the
            present one, each left out of the new fit in turn. None without such images.
        cross_validated: What both promise; None if one of them was not cross-validated.
        added, lost: Classes that only the new one has, and only the one before.
        decided: What the operating points of both decide of the images that they were chosen on, the present
            one's first. None if one of them has no such point.
        shrunk: The classes that have half of their images or fewer now, with the numbers before and now:
            corrections may be wrong in the same way.
    """

    bundle: Path
    is_replaced: bool
    before: Path | None
    is_worse: bool | None
    comparison: Comparison | None
    cross_validated: CrossValidated | None
    added: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()
    decided: tuple[Decided, Decided] | None = None
    shrunk: tuple[tuple[str, int, int], ...] = ()

    @property
    def partly(self) -> bool:
        """True if the present classifier stays."""
        return not self.is_replaced

    @property
    def verdict(self) -> list[str]:
        """What was compared, and what has become of both, in lines."""
        lines = [] if self.comparison is None else self.comparison.verdict.splitlines()
        lines += [] if self.cross_validated is None else [str(self.cross_validated)]
        if self.decided is not None:
            present, new = (of.decided / of.images for of in self.decided)
            low, high = self.decided[1].interval
            lines.append(
                f"Decided by the operating point: {present:.1%} of images by the present one, {new:.1%} "
                f"({LEVEL:.0%}: {low:.1%} to {high:.1%}) by the new one."
            )
        lines += [f"New classes: {list_names(self.added, 5)}."] if self.added else []
        lines += [f"Classes that are gone: {list_names(self.lost, 5)}."] if self.lost else []
        if self.shrunk:
            names = [f"{name} ({now:,} of {before:,})" for name, before, now in self.shrunk]
            lines.append(
                f"Half of the images or more are gone of {list_names(names, 5)}: see the corrections."
            )
        if self.is_worse is None:
            why = "There is nothing to compare the new one on"
        else:
            why = f"The new one is {'' if self.is_worse else 'not '}clearly worse"
        ends = f"it takes the place of the present one, which is kept in {self.before}."
        if not self.is_replaced:
            ends = f"the present one stays. The new one is in {self.bundle}; --force lets it take the place."
        return [*map(printable, [*lines, f"{why}: {ends}"])]


def refit(
    bundle: Path | str,
    data: Any,
    *,
    force: bool = False,
    out: Path | str | None = None,
    roles: Path | str | None = None,
    unlabeled: Any = None,
    add_classes: Sequence[str] = (),
    dataset: DataSettings | None = None,
    device: str = "auto",
    progress: Progress | None = None,
    command: str = "",
) -> Refit:
    """Fit a classifier again as it was fitted, to its data with the corrections and images that came in
    since, and let the new one take its place if it is not clearly worse. The present one is kept beside it.

    Args:
        bundle: The folder of the classifier. Its backbone, names, method with its settings, shots, seed,
            share of "none of these", and what it promises, are those of the new one. A method that was chosen
            is chosen again.
        data: A data set, or what `load_dataset` takes.
        force: Let it take the place whatever the comparison says.
        out: Folder of the page comparison.html; None writes none.
        roles, unlabeled, add_classes, dataset, device, progress, command: As for `dear.fit`.

    Raises as `dear.fit`, before anything is computed where possible.
    """
    folder = expanded(bundle)
    folder = folder if folder.name else folder.resolve()  # the current one
    read_config(folder)
    before, beside = (folder.with_name(folder.name + ending) for ending in (BEFORE, NEW))
    for place in (before, beside):
        check_writable(place)
    if out is not None:
        require_writable(expanded(out), "the page to", folder=True)
    present = Bundle.from_pretrained(folder)
    names = f"{folder.name} (present)", f"{folder.name} (new)"
    options = {"roles": roles, "unlabeled": unlabeled, "add_classes": add_classes, "dataset": dataset}
    options |= {"device": device, "progress": progress, "command": command}
    plan = FitPlan(data, folder, continue_from=folder, overwrite=True, **options_of(present), **options)
    with plan.running() as report:
        fitted = make_fit(plan, report)
        new, crossed = fitted.bundle, fitted.crossed
        predictors = Predictor(present, clip=fitted.clip), Predictor(new, clip=fitted.clip)
        cache = Cache(readouts=ReadoutStore(plan.reading.cache_folder()))
        comparison, images = compare_with_present(predictors, names, fitted.dataset, crossed, cache)
        promised = compare_promises(present, new, crossed)
        clear = [] if comparison is None else [comparison.p < 1 - LEVEL and comparison.difference < 0]
        clear += [] if promised is None else [promised.high < 0]
        decided = compare_decided(present, new)
        if decided is not None and plan.goal is not None and plan.goal.costs is None:
            clear.append(decided[1].interval[1] < decided[0].interval[0])
        is_worse = any(clear) if clear else None
        is_replaced = force or is_worse is False
        if comparison is not None and images is not None and out is not None:
            write_comparison(expanded(out), comparison, images, predictors[0])
        elif out is not None:
            warn("no page is written: there are no images on which both can be compared")
        if is_replaced:
            copy_bundle(folder, before)
        fitted.save(folder if is_replaced else beside)
    return Refit(
        folder if is_replaced else beside,
        is_replaced,
        before if is_replaced else None,
        is_worse,
        comparison,
        promised,
        tuple(name for name in new.classes if name not in present.classes),
        tuple(name for name in present.classes if name not in new.classes),
        decided,
        find_shrunk(present, new, fitted.dataset),
    )


def options_of(bundle: Bundle) -> dict[str, Any]:
    """The options of `dear.fit` that a bundle was fitted with, as far as it knows them."""
    facts, point = bundle.training, bundle.training.operating
    is_chosen = bool(facts.candidates)
    options: dict[str, Any] = {"method": AUTO if is_chosen else bundle.method, "shots": facts.shots}
    options |= {"seed": facts.seed, "refuse": bundle.refuse, "train": facts.overrides.get("train")}
    if not is_chosen:
        options["settings"] = facts.overrides.get("method")
    if point is not None:
        costs = point.costs and {(name, predicted): cost for name, predicted, cost in point.costs.rows}
        per_class = point.by_class is not None
        options |= {"precision": point.precision, "costs": costs, "per_class": per_class}
    return options


def compare_with_present(
    predictors: tuple[Predictor, Predictor],
    names: Sequence[str],
    dataset: Dataset,
    crossed: CrossValidation | None,
    cache: Cache,
) -> tuple[Comparison | None, Images | None]:
    """The present classifier and the new one on test images that neither was fitted on or, without any, on
    training images that are new to the present one, each predicted by a fit without it; and these images.
    """
    if len(dataset.test):
        try:
            return compare_predictors(predictors, dataset, names, cache)
        except DataError:  # the present one was fitted on all of them, or knows other classes
            return None, None
    if crossed is None:
        return None, None
    first, second = (predictor.bundle for predictor in predictors)
    pairs, known = common_classes(first, second), split_hashes(first.image_hashes)
    number_of = {number: place for place, (_, number) in enumerate(pairs)}
    labels = torch.tensor([number_of.get(label, -1) for label in crossed.predictions.labels.tolist()])
    is_common, is_new = (
        labels >= 0,
        torch.tensor([digest not in known for digest in image_hashes(crossed.images)]),
    )
    rows = (is_new & is_common).nonzero().flatten()
    if not len(rows):
        return None, None
    images, labels = Subset(crossed.images, rows), labels[rows]
    columns = torch.tensor(pairs).T
    common = tuple(first.classes[number] for number, _ in pairs)
    of_present = predict_images(predictors[0], images, columns[0][labels], cache=cache)
    among_all = of_present, _rows_of(crossed.predictions, rows)
    runs = [of.among(part, common, labels) for of, part in zip(among_all, columns, strict=True)]
    of_others = [
        tuple(name for at, name in enumerate(bundle.classes) if at not in part.tolist())
        for bundle, part in zip((first, second), columns, strict=True)
    ]
    comparison = compare_predictions(
        runs,
        images,
        names,
        methods=[f"{bundle.method} on {bundle.weights}" for bundle in (first, second)],
        right_of_all=[int(of.correct.sum()) for of in among_all],
        data=dataset.title,
        left_out=int((~is_new).sum()),
        other_images=int((is_new & ~is_common).sum()),
        twins=0,
        other_classes=(of_others[0], of_others[1]),
    )
    return comparison, images


def _rows_of(predictions: Predictions, rows: torch.Tensor) -> Predictions:
    """The predictions of some of the images, by the logits alone."""
    logits, labels = predictions.logits[rows], predictions.labels[rows]
    return Predictions(
        predictions.classes, labels, logits, logits, logits, temperature=predictions.temperature
    )


def compare_promises(present: Bundle, new: Bundle, crossed: CrossValidation | None) -> CrossValidated | None:
    """The accuracies that both promise; that of the new one among the classes of both, so that it is as hard
    for both.
    """
    scores, pairs = present.scores, common_classes(present, new)
    if scores is None or scores.split != CROSS_VALIDATION or crossed is None or not pairs:
        return None
    number_of = {number: place for place, (_, number) in enumerate(pairs)}
    labels = torch.tensor([number_of.get(label, -1) for label in crossed.predictions.labels.tolist()])
    rows, columns = (labels >= 0).nonzero().flatten(), torch.tensor([number for _, number in pairs])
    if not len(rows):
        return None
    common = tuple(new.classes[number] for number in columns.tolist())
    right = _rows_of(crossed.predictions, rows).among(columns, common, labels[rows]).correct.double().numpy()
    of_present = scores.interval or share_interval(scores.accuracy * scores.images, scores.images)
    of_new = group_share_interval(right, group_names(Subset(crossed.images, rows)))
    now = float(right.mean())
    interval = independent_difference(scores.accuracy, of_present, now, of_new)
    return CrossValidated(scores.accuracy, now, scores.images, len(rows), *interval, of_new)


def compare_decided(present: Bundle, new: Bundle) -> tuple[Decided, Decided] | None:
    """What the operating points of both decide of the images that they were chosen on."""
    points = present.training.operating, new.training.operating
    first, second = (None if point is None else point.measured for point in points)
    return None if first is None or second is None else (first, second)


def find_shrunk(present: Bundle, new: Bundle, dataset: Dataset) -> tuple[tuple[str, int, int], ...]:
    """The classes of both that have half of the training images or fewer now; those before are known where
    they were left out in turn.
    """
    scores = present.scores
    if scores is None or scores.split != CROSS_VALIDATION:
        return ()
    now = Counter(new.classes[label] for label in dataset.train.labels.tolist())
    counts = [(name, count, now[name]) for name, count in scores.class_images.items() if name in new.classes]
    return tuple((name, count, left) for name, count, left in counts if 2 * left <= count)


def copy_bundle(folder: Path, copy: Path) -> None:
    """Copy a bundle, whole or not at all, in place of an earlier copy. Raises OutputError."""
    part = copy.with_name(f".{copy.name}{PART}")
    with writing(copy, "the present bundle to", "for it"), temporary_folder(part):
        shutil.rmtree(part, ignore_errors=True)  # of a killed process
        shutil.copytree(folder, part, ignore=shutil.ignore_patterns(UNFINISHED))
        shutil.rmtree(copy, ignore_errors=True)
        part.rename(copy)
