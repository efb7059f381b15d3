"""`dear review`, `dear suggest` and `dear labels apply`: which labels look wrong, which images to label next,
and what somebody said of them.
"""

from contextlib import ExitStack
from pathlib import Path
from shlex import quote
from typing import Any

from dear.adapters.results import check_table, write_suggestions
from dear.cli.options import BundleName, BundleOptions, DataName, FitOptions
from dear.cli.output import PrintableConsole, progress_console
from dear.cli.parsing import Flat
from dear.cli.review_server import ReviewServer
from dear.curation.issues import REVIEW_PAGE, describe_issues
from dear.data.names import require_folder
from dear.data.settings import DataSettings
from dear.data.sources.shards import is_pattern
from dear.methods.registry import AUTO, known_method
from dear.reading.remote import as_path
from dear.text import list_names, plural

SHOWN = 10  # suggestions that are printed


def command_review(
    data: DataName,
    more: list[str] = [],  # noqa: B006 (never changed)
    *,
    out: Path,
    method: str = AUTO,
    serve: bool = False,
    port: int = 7861,
    token: str | None = None,
    options: Flat[FitOptions] = FitOptions(),
) -> dict[str, Any]:
    """Find labels that look wrong, and images that are there twice, without writing a classifier.

    Each image is judged by a classifier that was fitted without it. `dear fit` does the same with its
    training images.

    Args:
        more: Further data that is added to the first.
        out: Folder to write to: review.html shows the images, and in review.csv you correct the labels.
        method: The method that judges, as for `dear fit`. If it takes long to fit again
            without some of the images, dear+ judges in its place.
        serve: Then show the images on a page of this machine until Ctrl-C, where you correct the labels by
            clicks and keys. Each answer is written into corrections.csv beside the data.
        port: Port of the page. 0 picks a free one.
        token: Token of the page. By default the value of the environment variable DEAR_TOKEN, or one that is
            made up for the address that is printed.
    """
    from dear.cli.progress import StepProgress

    method = method if method == AUTO else known_method(method)
    options.check_all([data, *more])
    sources = [data, *more]
    with ExitStack() as stack:
        served = stack.enter_context(ReviewServer(sources, port, token)) if serve else None
        from dear.adapters.review import review_data  # loads torch: what can be refused without it is

        with StepProgress() as progress:
            reviewed = sources if more else data
            review, issues = review_data(reviewed, out, method=method, progress=progress, **vars(options))
        result = {"out": out, "method": review.method, "images": len(review.judged), "issues": issues}
        result |= {"confused": review.confused_pairs, "is_precise": review.scores.is_precise}
        result |= {"answers": None}
        if served is not None and issues:
            progress_console().say(*describe_result(result))
            result["answers"] = served.run(issues, review.confused_pairs, options.dataset)
    return result


def describe_result(result: dict[str, Any]) -> list[str]:
    """How many there are, and where."""
    how = {name: result[name] for name in ("confused", "is_precise")}
    return describe_issues(result["issues"], result["images"], str(result["out"] / REVIEW_PAGE), **how)


def render_review(result: dict[str, Any], console: PrintableConsole) -> None:
    """Say how many there are, and where; of those that were shown, how many were answered."""
    if result["answers"] is None:
        console.say(*describe_result(result))
    else:
        console.say(f"{plural(result['answers'], 'image')} answered, the next dear fit learns from them")


def command_apply(
    reviewed: Path,
    data: str,
    *,
    new_classes: list[str] = [],  # noqa: B006 (never changed)
    dataset: DataSettings = DataSettings(),
) -> dict[str, Any]:
    """Write corrected labels into corrections.csv beside the data, where every command reads them.

    The corrections come from a table of `dear review`, `fit`, `predict` or `suggest` in which somebody
    corrected labels, filled them in, or wrote yes into the column checked. Any other table with the columns
    path and label works too. A label is the name of a class, keep if the label is right, or none if the image
    is of no class. A correction follows an image that is moved or renamed, by its content.

    Args:
        reviewed: The table with the corrections, a CSV file.
        data: The data that is corrected: a folder of images, a table or a zip.
        new_classes: Names that are meant as new classes, although they are spelled nearly like a class.
        dataset: How the data set is read.
    """
    from dear.adapters.labels import apply_labels

    return vars(apply_labels(reviewed, data, new_classes=new_classes, dataset=dataset))


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
    bundle: BundleName,
    images: str,
    *,
    count: int = 50,
    out: Path = Path("next.csv"),
    options: Flat[BundleOptions] = BundleOptions(),
) -> dict[str, Any]:
    """Suggest images to label next.

    There are two kinds: images of which the classifier is least sure, no two of them alike, and images that
    look like none of its classes and may be of a new class, grouped by likeness. Of each kind there are at
    most --count.

    The CSV file has a row for each image, with an empty label beside the suggested class. Fill in labels, put
    them beside the images with `dear labels apply next.csv more-photos/`, and fit to both folders. Images
    that the classifier was fitted on, and those that have a label beside the images, are not suggested.
    Features are kept in the cache folder, so that a second call encodes only new images.

    Args:
        images: Folder, archive or table of images, here or at an address.
        count: How many images of each kind to suggest at most.
        out: CSV file to write.
    """
    check_table(out, (".csv",))
    if not is_pattern(images):
        require_folder(as_path(images))
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
