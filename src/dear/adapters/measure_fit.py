"""What a fit can promise, by test images or by training images that are left out in turn, and what else these
tell: the operating point, "none of these", and which labels look wrong.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from jaxtyping import Bool
from torch import Tensor

from dear.adapters.bundle import Bundle
from dear.adapters.calibration import Calibration, calibrate, calibrate_by_left_out
from dear.adapters.choose import Choice
from dear.adapters.facts import CROSS_VALIDATION, BundleScores
from dear.adapters.fit_plan import FitPlan
from dear.adapters.leftout import LeftOut, LeftOutScores
from dear.adapters.operating import Decided, OperatingGoal, OperatingPoint
from dear.adapters.predictor import Predictor
from dear.adapters.prepare import FitImages
from dear.adapters.review import Review, review_images
from dear.adapters.scoring import (
    CrossValidation,
    choose_operating_point,
    cross_validate,
    evaluate_images,
    find_refused,
    measure_decided,
)
from dear.curation.outlier_fit import fit_outlier_model
from dear.curation.outliers import OutlierModel
from dear.data.dataset import Images
from dear.data.images.photos import group_names, split_hashes
from dear.data.sources.corrections import answered_contents
from dear.errors import DearError, warn
from dear.evaluation.predictions import Predictions
from dear.evaluation.trial import Trial
from dear.progress import Progress

Made = TypeVar("Made")


def calibrate_fit(
    trial: Trial, images: FitImages, left_out: LeftOut, choice: Choice | None
) -> tuple[Calibration, LeftOutScores | None]:
    """The temperature, and the scores of training images that were left out of the very method and settings,
    if it has them.
    """
    spared = None if images.calibration is None else calibrate(trial, images.calibration)
    try:
        scores = (choice and choice.left_out) or left_out.scores(trial)
    except DearError as error:
        return spared or Calibration(missing=str(error).removesuffix(".")), None
    return spared or calibrate_by_left_out(scores), scores


def measure_fit(
    plan: FitPlan,
    bundle: Bundle,
    trial: Trial,
    left_out: LeftOut,
    scores: LeftOutScores | None,
    choice: Choice | None,
    report: Progress,
) -> tuple[Bundle, CrossValidation | None, Review | None]:
    """The bundle with its scores, by test images or else by cross-validation, with its operating point, and
    with what is found by images that were left out; the cross-validation and the review, if they were made.
    ``scores`` are of left-out images by the method of the bundle, if it has them.
    """
    dataset, facts = left_out.dataset, dict[str, Any]()
    tested = test = refused = crossed = review = issues = None
    known = attempt('"none of these"', partial(find_known, left_out)) if plan.refuse else None
    bundle = replace(bundle, known=known and known[0])
    if len(dataset.test):
        options: dict[str, Any] = {"is_unseen": True, "progress": report, "cache": left_out.session.cache}
        predictor = Predictor(bundle, clip=trial.run.clip)
        tested, test, _ = evaluate_images(predictor, dataset, **options)
        refused = find_refused(predictor, test)
    if scores is not None and len(scores.judged) and (tested is None or plan.goal):
        ranks = None if known is None else known[1]
        crossed = cross_validate(bundle, trial, left_out, (choice and choice.scores) or scores, ranks)
    measured = crossed.scores if tested is None and crossed is not None else tested
    if plan.goal is not None:
        facts["operating"], decided = find_operating_point(plan.goal, crossed, test, refused, dataset.test)
        measured = measured and replace(measured, decided=decided)
    if plan.review:
        judged = partial(review_images, left_out, scores, answered_contents(plan.data))
        review = attempt("the review of labels", judged)
    if review is not None:
        wrong, is_precise = review.wrong_labels(), review.scores.is_precise
        issues = (*wrong, *review.twins(with_test=tested is not None))
        facts |= {"judged_labels": len(review.judged), "confused": review.confused_pairs}
        facts |= {"judge": "" if review.method == bundle.method else review.method}
        facts |= {"is_precise": is_precise, "suspect_labels": len(wrong) if is_precise else 0}
    if plan.earlier is not None and measured is None:
        facts["earlier_test"] = find_earlier_test(bundle, Bundle.from_pretrained(plan.earlier))
    training = replace(bundle.training, **facts)
    return replace(bundle, scores=measured, review=issues, training=training), crossed, review


def find_known(left_out: LeftOut) -> tuple[OutlierModel, Tensor] | None:
    """What "none of these" is told by, and the rank of each picture that is left out of it."""
    features, labels = left_out.frozen_features(), left_out.labels
    return fit_outlier_model(features, labels, len(left_out.dataset.classnames), left_out.groups)


def attempt(name: str, make: Callable[[], Made]) -> Made | None:
    """A part of a fit; None, with a warning, if it cannot be made, which takes nothing else away."""
    try:
        return make()
    except Exception as error:
        warn(f"{name} is left out: {error or type(error).__name__}")
        return None


def find_operating_point(
    goal: OperatingGoal,
    crossed: CrossValidation | None,
    test: Predictions | None,
    refused: Bool[Tensor, "item"] | None,
    images: Images,
) -> tuple[OperatingPoint, Decided | None]:
    """The operating point, chosen by the training images that were left out in turn; of a method that takes
    too long for that, by the test ``images``. And what it decides of these, if it was not chosen on them;
    those that are ``refused`` go to a person.
    """
    if crossed is not None:
        point = choose_operating_point(
            goal, crossed.predictions, crossed.images, crossed.groups, CROSS_VALIDATION, crossed.refused
        )
        return point, None if test is None else measure_decided(point, test, group_names(images), refused)
    if test is not None:
        return choose_operating_point(goal, test, images, group_names(images), "test", refused), None
    return OperatingPoint(goal.precision, costs=goal.costs), None


def find_earlier_test(bundle: Bundle, earlier: Bundle) -> BundleScores | None:
    """What was measured of an earlier bundle, if that has the same method, settings and classes and was
    fitted on images of this one alone.
    """
    facts = [(each.method, each.settings, each.classes, each.weights) for each in (bundle, earlier)]
    is_part = split_hashes(earlier.image_hashes) <= split_hashes(bundle.image_hashes)
    return earlier.scores if facts[0] == facts[1] and is_part else None
