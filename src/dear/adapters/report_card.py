"""The report card of a bundle: a page of two sides that a person can read, print and sign."""

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from dear.adapters.bundle import Bundle
from dear.adapters.bundle_config import CONFIG
from dear.adapters.by_group import CONFUSED, GroupAccuracy
from dear.adapters.evaluation import evaluate
from dear.adapters.evaluation_page import load_view
from dear.adapters.facts import BundleScores
from dear.adapters.identity import short_identity
from dear.adapters.operating_words import describe_decided, describe_point
from dear.adapters.predictor import Predictor
from dear.adapters.wording import accuracy_interval, describe_test
from dear.curation.outliers import describe_refusal
from dear.data.dataset import Dataset
from dear.data.fewshot import leave_subsets
from dear.data.images.decode import as_image
from dear.data.loading import as_dataset
from dear.data.settings import DataSettings
from dear.errors import DataError, OutputError
from dear.reading.files import expanded
from dear.report.render import gallery_photo, render_page, write_html
from dear.text import FEW, list_names, plural
from dear.writing import require_writable

MOST_SHOWN = 24
"""Classes with a photograph and a row of their own: more do not fit on two sides."""
MOST_GROUPS = 12


def write_report_card(
    bundle: Predictor | Bundle | Path | str,
    out: Path | str,
    data: Any = None,
    *,
    purpose: str = "",
    by: str | None = None,
    dataset: DataSettings | None = None,
) -> Path:
    """Write the report card of a bundle as an HTML page, which prints on two sides.

    Args:
        out: File of the page; a name without a suffix gets ".html".
        data: Labeled images that it was not fitted on, for a photograph of each class and, with ``by``, the
            accuracy by group (`read_groups`); it is measured on these. None takes what the bundle knows.
        purpose: What it is for, in a sentence; without one there is a line to write it on.
        dataset: How the data is read.

    Raises as `evaluate`, OutputError for a page that cannot be written.
    """
    path = expanded(out)
    if not path.suffix and not path.is_dir():  # a browser would show its source
        path = path.with_name(f"{path.name}.html")
    if path.suffix.lower() not in (".html", ".htm"):
        raise OutputError(f"--out {out}: give a file ending in .html.")
    require_writable(path, "the page")
    if by is not None and data is None:
        raise DataError("accuracy by group needs labeled images: give the data too.")
    predictor = Predictor.of(bundle)
    served, found, photos = predictor.bundle, None, list[dict[str, Any]]()
    if data is not None:
        settings = (dataset or DataSettings()).with_test_share(1.0).skip_broken()
        found = evaluate(predictor, data, by=by, dataset=settings)
        photos = draw_examples(predictor, as_dataset(data, settings))
    scores = served.scores if found is None else found.scores
    facts, point = served.training, served.training.operating
    tested = () if scores is None else (scores.refused, scores.images)
    text = render_page(
        "report_card.html.j2",
        bundle=served,
        title=Path(served.source).name or served.method,
        identity=short_identity(served),
        made=date_of(served),
        today=datetime.now(tz=UTC).date().isoformat(),
        purpose=purpose,
        scores=scores,
        interval=None if scores is None else accuracy_interval(scores),
        lines=describe_test(scores, facts),
        promise=[*describe_point(point), *describe_decided(point, scores.decided if scores else None)],
        refusal=describe_refusal(served.known, served.refuse, *tested),
        unseen=describe_unseen(served, scores),
        photos=photos,
        rows=class_rows(served, scores),
        more=max(0, len(served.classes) - MOST_SHOWN),
        measured_on=Path(data).name or str(data) if isinstance(data, str | Path) else "",
        by=by,
        groups=() if found is None else shown_groups(found.by_group),
    )
    return write_html(path, text)


def date_of(bundle: Bundle) -> str:
    """The day on which a bundle's folder was written; "" for one in memory."""
    file = Path(bundle.source) / CONFIG
    return datetime.fromtimestamp(file.stat().st_mtime, tz=UTC).date().isoformat() if file.is_file() else ""


def shown_groups(rows: Sequence[GroupAccuracy]) -> list[dict[str, str | int]]:
    """The worst groups, as rows of a table without what is most confused."""
    tables = [row.cells for row in rows[:MOST_GROUPS]]
    return [{title: cell for title, cell in cells.items() if title != CONFUSED} for cells in tables]


def class_rows(bundle: Bundle, scores: BundleScores | None) -> list[tuple[str, str, str]]:
    """For each class its accuracy and what is decided of it, the worst first."""
    accuracy = {} if scores is None else scores.per_class
    point = bundle.training.operating
    measured = None if scores is None else scores.decided
    if measured is None and point is not None:
        measured = point.measured
    decided = {} if measured is None else measured.per_class
    ranked = sorted(bundle.classes, key=lambda name: (accuracy.get(name, 2.0), name))
    return [
        (
            name,
            f"{accuracy[name]:.1%}" if name in accuracy else "not measured",
            f"{decided[name][1]} of {decided[name][0]}" if name in decided else "–",
        )
        for name in ranked[:MOST_SHOWN]
    ]


def describe_unseen(bundle: Bundle, scores: BundleScores | None) -> list[str]:
    """What a bundle was never shown, in sentences."""
    facts, lines = bundle.training, list[str]()
    if facts.named:
        lines.append(f"No image of {list_names(facts.named, FEW)}: known by name alone.")
    images = plural(facts.train_images, "image")
    lines.append(
        f"Nothing but {images} of {facts.data or 'its data'}: what comes from other cameras, places or "
        "seasons than these is not covered by any figure on this card."
    )
    if scores is None:
        lines.append("It was not tested on images that it was not fitted on.")
    elif scores.groups and scores.groups < scores.images:
        groups = plural(scores.groups, "group")
        lines.append(
            f"The {scores.images:,} images that it was measured on are {groups}: images of a group, such as "
            "a burst or copies, hardly differ, and no other groups were seen."
        )
    if bundle.known is None:
        lines.append('Things of none of the classes: it has no answer "none of these".')
    return lines


@torch.no_grad()
def draw_examples(predictor: Predictor, data: Dataset) -> list[dict[str, Any]]:
    """A photograph of each class, the first in the data."""
    images, items = leave_subsets(data.test)
    labels, photos = data.test.labels.tolist(), list[dict[str, Any]]()
    for label in sorted({*labels})[:MOST_SHOWN]:
        number, name = int(items[labels.index(label)]), data.classnames[label]
        picture = as_image(load_view(predictor, images, number))
        photos.append(gallery_photo(picture, title="", alt=name, captions={"": name}))
    return photos
