"""`dear review`, `dear suggest` and `dear labels apply`: which labels look wrong, which images to label next,
and what somebody said of them.
"""

from pathlib import Path
from shlex import quote
from typing import Any

from dear.adapters.results import check_table, write_suggestions
from dear.cli.options import BundleOptions, FitOptions
from dear.cli.output import PrintableConsole
from dear.cli.parsing import Flat
from dear.curation.issues import REVIEW_PAGE, describe_issues
from dear.data.settings import DataSettings
from dear.methods.registry import AUTO, known_method
from dear.text import list_names, plural

SHOWN = 10  # suggestions that are printed


def command_review(
    data: str,
    more: list[str] = [],  # noqa: B006 (never changed)
    *,
    out: Path,
    method: str = AUTO,
    options: Flat[FitOptions] = FitOptions(),
) -> dict[str, Any]:
    """Find labels that look wrong, and images that are there twice, without writing a classifier.

    Each image is judged by a classifier that was fitted without it. `dear fit` does the same for the images
    that it is fitted on.

    Args:
        data: A folder of images, a CSV or JSONL file, a zip, a benchmark or a task by name.
        more: Further ones, added to the first.
        out: Folder of review.html, which shows them, and review.csv, which you correct.
        method: What judges: as of `dear fit`. One that is trained in steps has dear+ judge.
    """
    from dear.cli.progress import StepProgress

    method = method if method == AUTO else known_method(method)
    options.check_all([data, *more])
    from dear.adapters.review import review_data  # loads torch: what can be refused without it is

    with StepProgress() as progress:
        sources = [data, *more] if more else data
        review, issues = review_data(sources, out, method=method, progress=progress, **vars(options))
    return {"out": out, "method": review.method, "images": len(review.judged), "issues": issues}


def render_review(result: dict[str, Any], console: PrintableConsole) -> None:
    """Say how many there are, and where."""
    console.say(*describe_issues(result["issues"], result["images"], str(result["out"] / REVIEW_PAGE)))


def command_apply(
    reviewed: Path,
    data: str,
    *,
    dataset: DataSettings = DataSettings(),
) -> dict[str, Any]:
    """Put the labels of a reviewed table beside the data, as corrections.csv, which every command reads.

    The table is one of `dear review`, `fit`, `predict` or `suggest`, in which somebody corrected labels,
    wrote yes in the column checked, or filled in labels; or any with columns path and label. A label is a
    class, keep, or none for an image of no class. A correction follows an image that is moved or renamed, by
    its content.

    Args:
        reviewed: The table, a CSV file.
        data: The folder of the images, or the table or zip beside which they are corrected.
        dataset: How the data is read.
    """
    from dear.adapters.review import apply_labels

    return vars(apply_labels(reviewed, data, dataset=dataset))


def render_apply(result: dict[str, Any], console: PrintableConsole) -> None:
    """Say what was done, and what it does to the data."""
    elsewhere, unanswered = result["elsewhere"], result["unanswered"]
    console.say(
        f"{plural(result['answers'], 'label')} in {result['table']}",
        *result["notes"],
        *([f"left as they are, for nobody answered: {plural(unanswered, 'row')}"] if unanswered else []),
        *([f"gone, or not in the data: {list_names(elsewhere, SHOWN)}"] if elsewhere else []),
    )


def command_suggest(
    bundle: str,
    images: Path,
    *,
    count: int = 50,
    out: Path = Path("next.csv"),
    options: Flat[BundleOptions] = BundleOptions(),
) -> dict[str, Any]:
    """Suggest images to label next: those that the classifier is least sure of, no two alike; then as many
    that look like none of its classes, maybe of a new one, grouped by likeness.

    The CSV has a row for each, with an empty label beside the suggested class. Fill in labels, put them
    beside the images with `dear labels apply next.csv more-photos/`, and fit to both folders. Images that the
    classifier was fitted on are not suggested, nor are those that have a label there. What is encoded
    stays in the cache folder, so that a second call encodes only images that are new.

    Args:
        bundle: Folder of the bundle, or OWNER/NAME on the hub.
        images: Folder of images.
        count: How many to suggest of each kind.
        out: CSV file to write.
    """
    check_table(out, (".csv",))
    suggestions = options.load(bundle).suggest(images, count)
    return {"out": write_suggestions(out, suggestions), "images": images, "suggestions": suggestions}


def render_suggest(result: dict[str, Any], console: PrintableConsole) -> None:
    """Show the first ones, and what to do with the file."""
    out, images = quote(str(result["out"])), quote(str(result["images"]))
    suggestions = result["suggestions"]
    of_classes = [suggestion for suggestion in suggestions if not suggestion.new_class]
    new = [suggestion for suggestion in suggestions if suggestion.new_class]
    for title, listed in (("of your classes:", of_classes), ("maybe of a new class, alike by groups:", new)):
        if listed:
            more = len(listed) - SHOWN
            console.say(
                title,
                "margin  suggested                 image",
                *(
                    f"{suggestion.margin:6.1%}  {suggestion.suggested:24}  {suggestion.image}"
                    + (f"  (group {suggestion.new_class})" if suggestion.new_class else "")
                    for suggestion in listed[:SHOWN]
                ),
                *([f"... and {more} more"] if more > 0 else []),
            )
    console.say(
        f"{plural(len(suggestions), 'image')} to label: {result['out']}",
        f"next: fill in its column label, then dear labels apply {out} {images}",
        f"and dear fit DATA {images} --out DIR with the options of the first fit",
    )
