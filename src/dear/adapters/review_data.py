"""Find wrong labels of a data set without writing a classifier: `dear review`, and the form that users of
cleanlab know.
"""

from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from pandas import DataFrame

from dear.adapters.choose import choose_method
from dear.adapters.fit import prepare_data, read_data, resolve_backbone, resolve_roles, resolve_run
from dear.adapters.results import keep_labels
from dear.adapters.review import Review, name_image, review_images, write_review
from dear.data.loading import held_notes
from dear.data.settings import DataSettings
from dear.evaluation.resolve import MethodSetup
from dear.evaluation.run_context import RunContext
from dear.methods.registry import AUTO, FIT_METHOD, check_towers, known_method
from dear.progress import Progress, Steps
from dear.reading.files import expanded
from dear.review.rows import REVIEW_CSV, Issue
from dear.training.settings import TrainOptions


def review_data(
    data: Any,
    out: Path | str | None = None,
    *,
    method: str = AUTO,
    model: str | None = None,
    pretrained: str | None = None,
    roles: Path | str | None = None,
    shots: int | None = None,
    seed: int = 1,
    dataset: DataSettings | None = None,
    device: str = "auto",
    progress: Progress | None = None,
) -> tuple[Review, tuple[Issue, ...]]:
    """Review all images of a data set but those of a test split of its own, and write review.html and
    review.csv into ``out`` if that is not None. The arguments are those of `dear.fit`. Raises as `dear.fit`.
    """
    if out is not None:
        keep_labels(expanded(out) / REVIEW_CSV)
    settings = dataset or DataSettings()
    if settings.test_share == DataSettings.test_share:  # not asked for
        settings = replace(settings, test_share=0.0)
    setup = MethodSetup(FIT_METHOD if method == AUTO else known_method(method))
    with ExitStack() as stack:
        report = progress if progress is not None else stack.enter_context(Steps())
        with held_notes():
            source = read_data(data, settings, shots)
            images = prepare_data(source, setup, shots, seed, False, "last")
            name, clip = resolve_backbone(model, pretrained, device, images.dataset, settings)
            check_towers(setup.method, clip)
            context = RunContext(
                clip, resolve_roles(clip, roles, images.dataset, setup, report), TrainOptions()
            )
            context.cache.progress = report
            resolve_run(context, images, setup, seed)
        if method == AUTO:
            method = choose_method(context, images.dataset, images.shots, seed, progress=report).method
        review = review_images(context, images.dataset, images.shots, seed, method)
        issues = (*review.wrong_labels(), *review.twins())
    if out is not None:
        write_review(expanded(out), review, issues, data, name.model)
    return review, issues


def find_label_issues(data: Any, **options: Any) -> DataFrame:
    """Judge the label of each image of a data set by a classifier that was fitted without the image.

    Like `cleanlab.filter.find_label_issues`, but of images: probabilities are computed here. ``data`` is what
    `dear.fit` takes; ``options`` are its method, model, pretrained, roles, shots, seed, dataset, device and
    progress. Returns a row for each image that could be left out, with the columns of Datalab:
    ``is_label_issue``, ``label_score`` (how probable the label is beside the best other class, from 0 to 1),
    ``given_label`` and ``predicted_label``, and the ``path`` of the image. Raises as `dear.fit`.
    """
    review, _ = review_data(data, **options)
    names, labels = review.dataset.classnames, review.images.labels.cpu()[review.judged.cpu()]
    wrong = review.scores.looks_wrong
    best = review.scores.suggested.where(wrong, labels)
    return DataFrame(
        {
            "path": [name_image(review.images, item) for item in review.judged.tolist()],
            "is_label_issue": wrong.numpy(),
            "label_score": 1 - review.scores.probability.numpy(),
            "given_label": [names[label] for label in labels.tolist()],
            "predicted_label": [names[label] for label in best.tolist()],
        }
    )
