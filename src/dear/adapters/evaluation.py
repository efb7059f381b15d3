"""Evaluate a bundle: its scores, an operating point chosen on the images, accuracy by group, and the page."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dear.adapters.bundle import Bundle
from dear.adapters.by_group import GroupAccuracy, accuracy_by_group, read_groups
from dear.adapters.evaluation_page import write_evaluation_page
from dear.adapters.facts import BundleScores
from dear.adapters.operating import OperatingGoal, OperatingPoint
from dear.adapters.predictor import Predictor
from dear.adapters.scoring import (
    choose_operating_point,
    decide_images,
    evaluate_images,
    find_refused,
    measure_others,
)
from dear.data.images.photos import group_names
from dear.data.loading import as_dataset
from dear.data.settings import DataSettings
from dear.evaluation.predictions import Encode
from dear.reading.files import expanded
from dear.training.cache import Cache, ReadoutStore
from dear.writing import require_writable


@dataclass(frozen=True)
class Evaluation:
    """What `evaluate` found.

    Attributes:
        operating: The operating point that was asked for, chosen on these images; None if none was.
        by_group: The accuracy of each group, the worst first; empty if it was not asked for.
        files: The files of the page, which comes first; empty without one.
    """

    scores: BundleScores
    operating: OperatingPoint | None = None
    by_group: tuple[GroupAccuracy, ...] = ()
    files: tuple[Path, ...] = ()


def evaluate(
    predictor: Predictor | Bundle | Path | str,
    data: Any,
    out: Path | str | None = None,
    *,
    split: str = "test",
    own_classes: bool = True,
    others: Path | str | None = None,
    precision: float | None = None,
    costs: Mapping[Any, float] | Path | str | None = None,
    per_class: bool = False,
    by: str | None = None,
    dataset: DataSettings | None = None,
    encode: Encode | None = None,
) -> Evaluation:
    """Score a bundle as `evaluate_bundle` does, and more.

    Args:
        out: Folder of the page evaluation.html and its tables; None writes none.
        others: Folder of images of none of the classes (`measure_others`).
        precision, costs, per_class: An operating point to choose on these images, as in `dear.fit`.
        by: What accuracy is listed by (`read_groups`): a column of the table, "month", "camera" or a pattern.
        dataset: How the data is read.
        encode: What gives the features of images in place of the bundle here, such as
            `dear.cluster.jobs.features_on`.

    Raises as `evaluate_bundle`, SettingsError for a wrong goal or group, OutputError.
    """
    goal = OperatingGoal.of(precision, costs, per_class=per_class)
    if out is not None:
        require_writable(expanded(out), "the page to", folder=True)
    predictor = Predictor.of(predictor)
    if goal is not None and goal.costs is not None:
        goal.costs.check(predictor.classes)
    settings = (dataset or DataSettings()).skip_broken()
    settings = settings.with_test_share(1.0) if split == "test" else settings
    loaded = as_dataset(data, settings)
    let_through, count, decided = (None, 0, None) if others is None else measure_others(predictor, others)
    cache = Cache(readouts=ReadoutStore(settings.cache_folder()))  # another look encodes nothing again
    scores, predictions, images = evaluate_images(
        predictor, loaded, split=split, own_classes=own_classes, cache=cache, encode=encode
    )
    refused, point = find_refused(predictor, predictions), None
    if goal is not None:
        point = choose_operating_point(goal, predictions, images, group_names(images), split, refused)
    scores = replace(scores, let_through=let_through, others=count, others_decided=decided)
    found = Evaluation(scores, point)
    is_own = own_classes and found.scores.steered is None
    point = found.operating or (predictor.bundle.training.operating if is_own else None)
    if by is not None:
        groups = read_groups(data, images, by, settings)
        choices = None if point is None else decide_images(point, predictions, refused)
        found = replace(found, by_group=accuracy_by_group(predictions, images, groups, choices))
    if out is None:
        return found
    files = write_evaluation_page(
        out,
        predictor,
        loaded.title,
        found.scores,
        predictions,
        images,
        point=point,
        by=by,
        groups=found.by_group,
    )
    return replace(found, files=files)
