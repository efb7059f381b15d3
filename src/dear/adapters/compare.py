"""Compare two classifiers on the same images: which is right more often, and where they differ."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from pandas import DataFrame

from dear.adapters.bundle import Bundle
from dear.adapters.by_group import GroupDifference, difference_by_group, read_groups
from dear.adapters.evaluation_page import load_view
from dear.adapters.predictor import Predictor
from dear.adapters.saved_run import load_bundle
from dear.adapters.scoring import find_classes, find_twins_of_training, predict_images, without_fitted_images
from dear.backbone.names import warn_of_toy
from dear.data.dataset import Dataset, Images
from dear.data.fewshot import Subset, leave_subsets
from dear.data.images.decode import as_image
from dear.data.images.photos import group_names
from dear.data.loading import as_dataset
from dear.data.settings import DataSettings
from dear.errors import DataError
from dear.evaluation.metrics import calibration_error, log_loss
from dear.evaluation.predictions import ImagePredictions, Predictions
from dear.reading.files import expanded
from dear.report.grid import csv_file
from dear.report.mistakes import WORST, image_rows, percent, title_of
from dear.report.render import gallery_photo, render_page, write_page
from dear.stats import GROUPED, LEVEL, group_share_interval, paired_difference
from dear.text import list_names, plural, printable
from dear.training.cache import Cache, ReadoutStore
from dear.writing import require_writable

PAGE = "comparison.html"
Right = Literal["second", "first", "neither"]
MOST_SHOWN = 24  # pictures of each kind on the page


@dataclass(frozen=True)
class ClassifierScores:
    """How one of two classifiers does on the images of both, among the classes of both.

    Attributes:
        low, high: The interval of its accuracy, at 95%.
        right_of_all: How many images are right among all of its own classes.
    """

    name: str
    method: str
    right: int
    right_of_all: int
    accuracy: float
    low: float
    high: float
    log_loss: float
    calibration_error: float


@dataclass(frozen=True)
class ClassDifference:
    """How many images of a class are right with each classifier, and with one of them alone."""

    name: str
    images: int
    first_right: int
    second_right: int
    only_first: int
    only_second: int


@dataclass(frozen=True)
class ImageDifference:
    """An image that two classifiers predict to be of different classes.

    Attributes:
        image: Its file, else "image" and its number from 1.
        number: Its number among the test images of the data, from 0.
        right: Which of the two predictions is right.
    """

    image: str
    number: int
    label: str
    first: str
    first_probability: float
    second: str
    second_probability: float
    right: Right


@dataclass(frozen=True)
class Comparison:
    """Two classifiers on the same images, which neither was fitted on.

    Attributes:
        images: How many images are compared.
        left_out: Images that are not, for one of the classifiers was fitted on them.
        other_images: Images that are not, for their class is not one of both.
        twins: Images among those compared that are near-duplicates of the data's training images.
        groups: How many groups the images are from; an image that is in none counts as one.
        classes: The classes that both have, the candidates of both.
        other_classes: The classes that only the first has, and those that only the second has.
        only_first, only_second: How many images are right with one of them alone.
        difference, low, high: The accuracy of the second minus that of the first, and its paired interval at
            95%.
        p: The p-value of the exact test that both are right as often: McNemar's, by groups where images are
            in groups (`dear.stats.paired_difference`).
        per_class: The classes that have images, the largest difference first.
        by_group: The groups that were asked for, that which loses most first.
        differences: The images whose predictions differ: those that are right with the second alone, then
            with the first alone, then with neither.
    """

    data: str
    images: int
    left_out: int
    other_images: int
    twins: int
    groups: int
    classes: tuple[str, ...]
    other_classes: tuple[tuple[str, ...], tuple[str, ...]]
    first: ClassifierScores
    second: ClassifierScores
    only_first: int
    only_second: int
    difference: float
    low: float
    high: float
    p: float
    per_class: tuple[ClassDifference, ...]
    differences: tuple[ImageDifference, ...]
    by_group: tuple[GroupDifference, ...] = ()

    @property
    def is_grouped(self) -> bool:
        """True if the images are from clearly fewer groups."""
        return self.groups < GROUPED * self.images

    @property
    def verdict(self) -> str:
        """What was measured, in lines: the difference first."""
        first, second, level = self.first.name, self.second.name, f"{LEVEL:.0%}"
        is_clear = self.p < 1 - LEVEL  # and the interval is without 0
        words = f"is {'better' if self.difference > 0 else 'worse'} than"
        words = words if is_clear else "is neither clearly better nor clearly worse than"
        interval = f"{100 * self.low:+z.1f} to {100 * self.high:+z.1f}"
        alone = f"{plural(self.only_second, 'image')} right with {second} alone"
        p_value = f"= {self.p:.3f}" if self.p >= 0.001 else "< 0.001"
        test = "exact test by groups" if self.is_grouped else "McNemar's exact test"
        lines = [
            f"{second} {words} {first}: {100 * self.difference:+z.1f} points ({level}: {interval}).",
            f"{alone}, {self.only_first:,} with {first} alone ({test}: p {p_value}).",
        ]
        for scores in (self.first, self.second):
            interval = f"({level}: {scores.low:.1%} to {scores.high:.1%})"
            lines.append(
                f"{scores.name}: {scores.right} of {self.images} right, {scores.accuracy:.1%} {interval}."
            )
        return "\n".join(printable(line) for line in [*lines, *self.notes])

    @property
    def notes(self) -> list[str]:
        """What does not count, and what the numbers hold for, in sentences."""
        first, second = self.first, self.second
        notes = []
        if self.left_out:
            images = plural(self.left_out, "image")
            notes.append(f"Left out: {images} on which {first.name} or {second.name} was fitted.")
        if self.twins:
            notes.append(
                f"{self.twins:,} of the images are near-duplicates of training images of the data, or of "
                "their group: the split leaks."
            )
        if self.is_grouped:
            groups = plural(self.groups, "group")
            notes.append(f"These images are from {groups}, which are what intervals and test count.")
        if self.other_images or any(self.other_classes):
            alone = [
                f"{list_names(names, 5)} (only {scores.name})"
                for scores, names in zip((first, second), self.other_classes, strict=True)
                if names
            ]
            others = f" {plural(self.other_images, 'image')} of other classes left out."
            notes.append(
                f"Among the {plural(len(self.classes), 'class')} of both{'; not ' if alone else ''}"
                f"{', '.join(alone)}.{others if self.other_images else ''} Among all of its own classes, "
                f"{first.name} has {first.right_of_all} right, {second.name} {second.right_of_all}."
            )
        return notes


def compare(
    first: Predictor | Bundle | Path | str,
    second: Predictor | Bundle | Path | str,
    data: Any,
    out: Path | str | None = None,
    *,
    dataset: DataSettings | None = None,
    device: str = "auto",
    pretrained: str | None = None,
    by: str | None = None,
) -> Comparison:
    """Compare two classifiers on the test images of a data set, or on all images of one without a split: on
    those that neither was fitted on, among the classes that both have.

    Args:
        first, second: A predictor, or what `load_bundle` takes.
        data: A data set, or what `load_dataset` takes.
        out: Folder of the page comparison.html and its tables; None writes none.
        dataset: How the data is read.
        device, pretrained: Where to compute, and where the backbone's weights are if they have moved.
        by: What the difference is listed by: a column of the table, "month", "camera" or a pattern.

    Raises DataError where no image of common classes is left, and as `dear.Predictor`.
    """
    if out is not None:
        require_writable(expanded(out), "the page to", folder=True)
    predictors = list[Predictor]()
    for source in (first, second):
        if not isinstance(source, Predictor):
            bundle = load_bundle(source)
            clip = next((each.clip for each in predictors if each.clip.identity == bundle.weights), None)
            source = Predictor(bundle, device, clip=clip, pretrained=pretrained)
        predictors.append(source)
    names = [_name(source) for source in (first, second)]
    if names[0] == names[1]:
        names = [f"{names[0]} (first)", f"{names[1]} (second)"]
    settings = (dataset or DataSettings()).with_test_share(1.0).skip_broken()
    groups = None if by is None else partial(read_groups, data, by=by, settings=settings)
    loaded, cache = as_dataset(data, settings), Cache(readouts=ReadoutStore(settings.cache_folder()))
    comparison, images = compare_predictors(predictors, loaded, names, cache, groups)
    if out is not None:
        write_comparison(expanded(out), comparison, images, predictors[0])
    return comparison


def _name(source: Predictor | Bundle | Path | str) -> str:
    """What a classifier is called: as its folder, as on the hub, or as its method."""
    bundle = source.bundle if isinstance(source, Predictor) else source
    if isinstance(bundle, Bundle):
        return Path(bundle.source).name or bundle.method
    return expanded(bundle).resolve().name if expanded(bundle).exists() else str(bundle)


@torch.no_grad()
def compare_predictors(
    predictors: Sequence[Predictor],
    dataset: Dataset,
    names: Sequence[str],
    cache: Cache,
    groups: Callable[[Images], Sequence[str]] | None = None,
) -> tuple[Comparison, Images]:
    """The comparison of two classifiers, of these names, on the test images of a data set, and the images.
    ``groups`` gives those that the difference is listed by.
    """
    first, second = predictors
    bundles = first.bundle, second.bundle
    for bundle in bundles:
        warn_of_toy(bundle.model, world=dataset.world, advice="fit without --model")
    dataset.require_single_labels()
    dataset, left_out = without_fitted_images(
        dataset, "test", b"".join(bundle.image_hashes for bundle in bundles)
    )
    pairs = common_classes(*bundles)
    named = dataset.classnames, dataset.keys
    numbers = [find_classes(bundle.classes, bundle.keys, *named) for bundle in bundles]
    number_of = {pair: number for number, pair in enumerate(pairs)}
    labels = torch.tensor([number_of.get(pair, -1) for pair in zip(*numbers, strict=True)])
    labels = labels[dataset.test.labels.cpu()]
    is_common = labels >= 0
    if not is_common.any():
        raise DataError(
            f"{dataset.name} has no test image of a class that both have: {names[0]} knows "
            f"{list_names(first.classes, 5)}, {names[1]} {list_names(second.classes, 5)}."
        )
    images, labels = Subset(dataset.test, is_common.nonzero().flatten()), labels[is_common]
    common = tuple(first.classes[number] for number, _ in pairs)
    runs, right_of_all, others = list[Predictions](), list[int](), list[tuple[str, ...]]()
    for predictor, columns in zip(predictors, torch.tensor(pairs).T, strict=True):
        among_all = predict_images(predictor, images, columns[labels], cache=cache)
        runs.append(among_all.among(columns, common, labels))
        right_of_all.append(int(among_all.correct.sum()))
        others.append(tuple(name for at, name in enumerate(predictor.classes) if at not in columns.tolist()))
    comparison = compare_predictions(
        runs,
        images,
        names,
        methods=[f"{bundle.method} on {bundle.weights}" for bundle in bundles],
        right_of_all=right_of_all,
        data=dataset.title,
        left_out=left_out,
        other_images=int((~is_common).sum()),
        twins=int(find_twins_of_training(dataset, images).sum()),
        other_classes=tuple(others),
        groups_of=groups and groups(images),
    )
    return comparison, images


def common_classes(first: Bundle, second: Bundle) -> list[tuple[int, int]]:
    """The numbers of the classes that both bundles have: in the first, and in the second."""
    in_second = find_classes(
        second.classes, second.keys or second.classes, first.classes, first.keys or first.classes
    )
    pairs = {other: number for number, other in reversed([*enumerate(in_second)]) if other is not None}
    return sorted((number, other) for other, number in pairs.items())


def compare_predictions(
    runs: Sequence[Predictions],
    images: Images,
    names: Sequence[str],
    *,
    methods: Sequence[str],
    right_of_all: Sequence[int],
    groups_of: Sequence[str] | None = None,
    **facts: Any,
) -> Comparison:
    """The comparison of the predictions of two classifiers for the same images, among the same classes."""
    count, name_of, order = len(images), runs[0].classes, get_args(Right)
    groups = group_names(images)
    first, second = (image_rows(ImagePredictions.of(run, images)) for run in runs)
    right, other_right = first.prediction == first.label, second.prediction == second.label
    alone = {"only_first": right & ~other_right, "only_second": other_right & ~right}
    counts = DataFrame({"images": 1, "first": right, "second": other_right, **alone})
    by_class, totals = counts.groupby(first.label).sum(), counts.sum()
    per_class = [ClassDifference(name_of[label], *map(int, row)) for label, *row in by_class.itertuples()]
    differ = first.prediction != second.prediction
    differences = [
        ImageDifference(
            *(title_of(row), row.image, name_of[row.label]),
            *(name_of[row.prediction], row.confidence, name_of[other.prediction], other.confidence),
            order[[other.prediction, row.prediction, row.label].index(row.label)],
        )
        for row, other in zip(first[differ].itertuples(), second[differ].itertuples(), strict=True)
    ]
    scores = [
        ClassifierScores(
            *(name, method, int(of_run.sum()), of_all, float(of_run.mean())),
            *(*group_share_interval(of_run, groups), log_loss(run), calibration_error(run)),
        )
        for name, method, of_run, of_all, run in zip(
            names, methods, (right, other_right), right_of_all, runs, strict=True
        )
    ]
    lost, gained = int(totals.only_first), int(totals.only_second)
    found = paired_difference(other_right.astype(int) - right.astype(int), groups)
    differences.sort(key=lambda d: (order.index(d.right), -max(d.first_probability, d.second_probability)))
    return Comparison(
        images=count,
        classes=name_of,
        first=scores[0],
        second=scores[1],
        only_first=lost,
        only_second=gained,
        groups=len({*groups}),
        difference=found.mean,
        low=found.low,
        high=found.high,
        p=found.p,
        per_class=tuple(sorted(per_class, key=lambda c: (-abs(c.only_second - c.only_first), c.name))),
        differences=tuple(differences),
        by_group=()
        if groups_of is None
        else difference_by_group(right.to_numpy(), other_right.to_numpy(), images, groups_of),
        **facts,
    )


def write_comparison(folder: Path, comparison: Comparison, images: Images, predictor: Predictor) -> None:
    """Write comparison.html, with its tables as CSV, into a folder; the predictor reads the pictures."""
    whole, _ = leave_subsets(images)

    def show(image: ImageDifference) -> dict[str, Any]:
        captions = {
            "class": image.label,
            comparison.first.name: f"{image.first} {percent(image.first_probability)}",
            comparison.second.name: f"{image.second} {percent(image.second_probability)}",
        }
        picture = as_image(load_view(predictor, whole, image.number))
        return gallery_photo(picture, title=image.image, alt=image.label, captions=captions)

    every = comparison.differences
    kinds = {right: [image for image in every if image.right == right] for right in get_args(Right)}
    galleries = {right: [show(image) for image in of_kind[:MOST_SHOWN]] for right, of_kind in kinds.items()}
    text = render_page(
        "comparison.html.j2", comparison=comparison, kinds=kinds, galleries=galleries, most=WORST
    )
    columns = [column.name for column in fields(ImageDifference)]
    tables = {
        "scores.csv": DataFrame([vars(comparison.first), vars(comparison.second)]),
        "classes.csv": DataFrame([vars(row) for row in comparison.per_class]),
        "differences.csv": DataFrame([vars(image) for image in comparison.differences], columns=columns),
    }
    if comparison.by_group:
        tables["groups.csv"] = DataFrame([vars(row) for row in comparison.by_group])
    write_page(folder, PAGE, text, {name: csv_file(table) for name, table in tables.items()}, ())
