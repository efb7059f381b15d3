"""Review a data set by its left-out images: which labels look wrong, and which images are there twice."""

import shlex
from collections.abc import Sequence, Set
from contextlib import ExitStack
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Int
from pandas import DataFrame
from torch import Tensor

from dear.adapters.choose import choose_method
from dear.adapters.labels import require_applied
from dear.adapters.leftout import LeftOut, LeftOutScores
from dear.adapters.prepare import prepare_data, prepare_run, read_data
from dear.backbone.names import backbone_or_default
from dear.curation.issues import REVIEW_CSV, REVIEW_PAGE, Issue, describe_issues
from dear.curation.twins import find_twins
from dear.curation.wrong_labels import LabelScores, find_confused, score_labels
from dear.data.dataset import Dataset, Images
from dear.data.images.decode import as_image
from dear.data.images.photos import image_hashes, make_thumbnails, name_image
from dear.data.loading import deferred_warnings
from dear.data.settings import DataSettings
from dear.data.sources.corrections import answered_contents
from dear.data.sources.table import CHECKED, PREDICTED
from dear.evaluation.resolve import MethodSetup
from dear.evaluation.session import Session
from dear.methods.registry import AUTO, FIT_METHOD, known_method
from dear.progress import Progress, Steps
from dear.reading.files import expanded
from dear.report.render import THUMBNAIL, data_url, render_page, write_page
from dear.text import without_surrogates
from dear.training.cache import Cache, ReadoutStore
from dear.writing import csv_path, csv_rows, csv_text

MAX_CARDS = 200  # on the page


@dataclass(frozen=True)
class Review:
    """A review of the pictures that a classifier is fitted on.

    Attributes:
        method: What judged them.
        images: The training images, each once.
        judged: Which of them could be left out, as indices.
        scores: What is said of the labels of these.
        confused_pairs: Classes that are often taken for each other, so that a wrong label between them looks
            like a mistake: two names, how many images are taken for the other class, and of how many.
        answered: The hashes of files of which somebody said what they show: they are not named again.
    """

    dataset: Dataset
    method: str
    images: Images
    judged: Int[Tensor, "judged"]
    scores: LabelScores
    confused_pairs: tuple[tuple[str, str, int, int], ...] = ()
    answered: frozenset[bytes] = frozenset()

    def wrong_labels(self) -> list[Issue]:
        """The labels that look wrong, the surest first."""
        names, labels, scores = self.dataset.classnames, self.images.labels, self.scores
        order = scores.probability.argsort(descending=True)[: int(scores.looks_wrong.sum())]
        rows = (part[order].tolist() for part in (self.judged, scores.suggested, scores.probability))
        return [
            Issue(name_image(self.images, item), names[int(labels[item])], names[other], probability)
            for item, other, probability in zip(*rows, strict=True)
        ]

    def twins(self, *, with_test: bool = False) -> list[Issue]:
        """Pictures that are nearly the same in different classes or, ``with_test``, in both parts."""
        parts: list[Images] = [self.images, *([self.dataset.test] if with_test else [])]
        where = [(part, item) for part in parts for item in range(len(part))]
        labels = torch.cat([part.labels.cpu() for part in parts])
        sides = torch.cat([torch.full((len(part),), side) for side, part in enumerate(parts)])
        pairs = find_twins(torch.cat([*map(make_thumbnails, parts)]), labels, sides)
        names, issues = self.dataset.classnames, []
        answered = _are_answered(parts, self.answered)
        for pair in pairs:
            if any(answered[item] for item in pair):
                continue
            first, second = (name_image(*where[item]) for item in pair)
            label, other = (names[int(labels[item])] for item in pair)
            issues.append(Issue(first, label, other, other=second))
        return issues


def _are_answered(parts: Sequence[Images], answered: Set[bytes]) -> list[bool]:
    """Whether somebody said what each image of some parts shows."""
    if not answered:
        return [False] * sum(map(len, parts))
    return [digest in answered for part in parts for digest in image_hashes(part)]


def review_images(
    left_out: LeftOut, scores: LeftOutScores | None, answered: Set[bytes] = frozenset()
) -> Review:
    """Judge each picture that is trained on by scores of it left out, by default those of `FIT_METHOD`. A
    class by name alone is not suggested: its scores are of another kind, with nothing to be measured by. The
    label of a file with an ``answered`` hash is right.
    """
    scores = scores or left_out.scores(left_out.build(MethodSetup(FIT_METHOD)))
    with_images = left_out.labels.unique()
    judged = scores.mean[:, with_images], torch.searchsorted(with_images, scores.labels)
    labels, names = score_labels(*judged), [left_out.dataset.classnames[label] for label in with_images]
    confused = tuple((names[one], names[other], *of) for one, other, *of in find_confused(*judged))
    is_right = torch.tensor(_are_answered([left_out.pictures], answered))[scores.judged.cpu()]
    probability = labels.probability.masked_fill(is_right.to(labels.probability.device), 0)
    labels = replace(labels, suggested=with_images[labels.suggested], probability=probability)
    images = left_out.pictures
    return Review(
        left_out.dataset, scores.method, images, scores.judged, labels, confused, frozenset(answered)
    )


def write_review(
    folder: Path,
    review: Review,
    issues: Sequence[Issue],
    data: Any,
    model: str,
    test: Images | None = None,
    classnames: Path | None = None,
) -> None:
    """Write review.html and review.csv into a folder; ``test`` are images that a fit did not judge."""
    parts = (review.images,) if test is None else (test, review.images)
    pictures = {name_image(part, item): (part, item) for part in parts for item in range(len(part))}

    def card(issue: Issue) -> dict[str, object]:
        urls = [_thumbnail(*pictures[image]) for image in (issue.image, issue.other) if image]
        title = Path(issue.image).name + (f" and {Path(issue.other).name}" if issue.other else "")
        words = "the other" if issue.other else "looks like"
        sure = "" if issue.probability is None else f" {100 * issue.probability:.0f}%"
        names = {"label": issue.label, "suggested": issue.suggested + sure}
        return {"urls": urls, "title": without_surrogates(title), "words": words, **names}

    visible, source = issues[:MAX_CARDS], shlex.quote(str(data)) if isinstance(data, str | Path) else "DATA"
    table = shlex.quote(str(folder / REVIEW_CSV))
    naming = f" --dataset.classnames {shlex.quote(str(classnames))}" if classnames else ""
    commands = [
        f"dear labels apply {table} {source}{naming}",
        f"dear fit {source} --model {shlex.quote(model)}{naming} --out NEW",
    ]
    page = render_page(
        "review.html.j2",
        data=review.dataset.title,
        verdict=" ".join(
            describe_issues(
                issues,
                len(review.judged),
                confused=review.confused_pairs,
                of_fit=test is not None,
                is_precise=review.scores.is_precise,
            )
        ),
        subject=review.method,
        commands=commands,
        sections={
            "Labels that look wrong": [card(issue) for issue in visible if not issue.other],
            "Images that are there twice": [card(issue) for issue in visible if issue.other],
        },
        hidden=len(issues) - len(visible),
    )
    write_page(folder, REVIEW_PAGE, page, {REVIEW_CSV: issues_csv(folder, issues)}, ())


def _thumbnail(images: Images, index: int) -> str:
    small = as_image(images.load(torch.tensor([index]))[0])
    small.thumbnail((2 * THUMBNAIL, 2 * THUMBNAIL))
    return data_url(small, "JPEG", quality=80)


def issues_csv(folder: Path, issues: Sequence[Issue]) -> bytes:
    """The rows of review.csv in a folder, one for each image: path, label, suggested, probability, other, and
    the reasons; then predicted, the label as it was, and checked.
    """
    content, table, by_image = BytesIO(), folder / REVIEW_CSV, dict[str, list[Issue]]()
    for issue in issues:
        by_image.setdefault(issue.image, []).append(issue)
    with csv_rows(content) as rows:
        rows.writerow(["path", "label", "suggested", "probability", "other", "reason", PREDICTED, CHECKED])
        for image, reasons in by_image.items():
            first, label = reasons[0], csv_text(reasons[0].label)
            probability = "" if first.probability is None else f"{first.probability:.4f}"
            other = next((csv_path(issue.other, table) for issue in reasons if issue.other), "")
            reason = " and ".join(
                dict.fromkeys("there twice" if issue.other else "label looks wrong" for issue in reasons)
            )
            suggested = csv_text(first.suggested)
            rows.writerow([csv_path(image, table), label, suggested, probability, other, reason, label, ""])
    return content.getvalue()


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
        require_applied(expanded(out) / REVIEW_CSV, data)
    settings = (dataset or DataSettings()).with_test_share(0.0)
    setup = MethodSetup(FIT_METHOD if method == AUTO else known_method(method))
    with ExitStack() as stack:
        report = progress if progress is not None else stack.enter_context(Steps())
        with deferred_warnings():
            source = read_data(data, settings, shots)
            images = prepare_data(source, setup, shots, seed, "last")
            readouts = ReadoutStore(settings.cache_folder(), draws_by_content=True)  # as a fit draws views
            session = Session(device, cache=Cache(readouts=readouts))
            session.cache.progress = report
            name = backbone_or_default(model, pretrained, world=images.dataset.world)
            run = prepare_run(session, name, images, setup, roles, settings, seed=seed)
        left_out = LeftOut(session, run)
        choice = choose_method(left_out, progress=report) if method == AUTO else None
        if choice is not None:
            setup = choice.setup
        elif not setup.declared.cheap:
            setup = MethodSetup(FIT_METHOD)
        scores = (choice and choice.left_out) or left_out.scores(left_out.build(setup))
        review = review_images(left_out, scores, answered_contents(data))
        issues = (*review.wrong_labels(), *review.twins())
    if out is not None:
        write_review(expanded(out), review, issues, data, name.model, classnames=settings.classnames)
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
