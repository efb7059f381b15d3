"""`dear eval`: measure a bundle on a data set; `dear compare`: measure two on the same images."""

from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Literal

from dear.adapters.facts import BundleScores
from dear.adapters.wording import list_metrics, verdict
from dear.cli.options import BundleOptions
from dear.cli.output import PrintableConsole, progress_console, table
from dear.cli.parsing import Flat
from dear.data.settings import DataSettings
from dear.reading.files import expanded
from dear.text import plural

SHOWN = 10  # images that are printed


def command(
    bundle: str,
    data: str,
    *,
    out: Path | None = None,
    others: Path | None = None,
    split: Literal["test", "val", "train"] = "test",
    classes: Literal["bundle", "data"] = "bundle",
    options: Flat[BundleOptions] = BundleOptions(),
    dataset: DataSettings = DataSettings(),
) -> dict[str, Any]:
    """Measure a bundle on a data set: accuracy beside zero-shot and chance, log-loss, calibration error,
    accuracy per class. Without a split all images are for testing; those that the bundle was fitted on are
    left out.

    Args:
        bundle: Folder of the bundle, or OWNER/NAME on the hub.
        data: A folder of images, a CSV or JSONL file, a zip, a benchmark or a task by name.
        out: Folder of a page: confusion matrix, scores by class, the most confident mistakes, reliability
            diagram, learning curve and attention. Each figure is also an SVG and a PDF.
            By default no page is written.
        others: Folder of images of no class of the bundle, to measure how many of them look like one.
        split: Images to score.
        classes: Candidate classes: the bundle's, or the data set's (by name).
        dataset: How the data set is read.
    """
    from dear.adapters.bundle_config import check_bundle
    from dear.data.names import check_name, require_folder

    check_bundle(bundle)
    check_name(data, dataset)
    require_folder(others)
    from dear.adapters.evaluation_page import write_evaluation  # loads torch: what can be refused is
    from dear.adapters.scoring import evaluate_bundle, measure_others
    from dear.data.loading import held_notes, load_dataset

    if split == "test":
        dataset = dataset.with_test_share(1.0)
    with held_notes(), progress_console().status("scoring"):
        predictor = options.load(bundle)
        images = load_dataset(data, dataset.skip_broken())
        how: dict[str, Any] = {"split": split, "own_classes": classes == "bundle"}
        let_through = None if others is None else measure_others(predictor, others)
        files: tuple[Path, ...] = ()
        if out is None:
            scores = replace(evaluate_bundle(predictor, images, **how), let_through=let_through)
        else:
            scores, files = write_evaluation(out, predictor, images, let_through=let_through, **how)
    return {**vars(scores), "page": files[0] if files else None, "files": files}


def render(result: dict[str, Any], console: PrintableConsole) -> None:
    """Show accuracy per class, worst first, all metrics, and what they mean."""
    worst = sorted(result["per_class"].items(), key=lambda row: row[1])
    console.print(table(None, ("class", "accuracy"), [(name, 100 * share) for name, share in worst]))
    skipped = f" (without {result['left_out']} that the bundle was fitted on)" if result["left_out"] else ""
    scores = BundleScores(**{field.name: result[field.name] for field in fields(BundleScores)})
    titles = ", ".join(f"{title} {value}" for title, value in list_metrics(scores, 2).items())
    console.say(
        f"{result['data']}, {plural(result['images'], result['split'] + ' image')}{skipped}, "
        f"{plural(result['classes'], 'class')}: {titles}",
        *verdict(scores),
        *([f"page: {result['page']}"] if result["page"] else []),
    )


def command_compare(
    first: str,
    second: str,
    data: str,
    *,
    out: Path | None = None,
    options: Flat[BundleOptions] = BundleOptions(),
    dataset: DataSettings = DataSettings(),
) -> dict[str, Any]:
    """Compare two classifiers on the same images: both accuracies, their difference with its paired interval
    and McNemar's exact test, and the images on which they differ. Without a split all images are for testing;
    those that either was fitted on are left out, and so are classes that only one of them has.

    Args:
        first: Folder of a bundle, or OWNER/NAME on the hub.
        second: The same; what is said of it is against the first.
        data: A folder of images, a CSV or JSONL file, a zip, a benchmark or a task by name.
        out: Folder of a page with the pictures on which they differ, and of its tables. By default no page is
            written.
        dataset: How the data set is read.
    """
    from dear.adapters.bundle_config import check_bundle
    from dear.data.names import check_name

    for bundle in (first, second):
        check_bundle(bundle)
    check_name(data, dataset)
    from dear.adapters.compare import PAGE, compare  # loads torch: what can be refused without it is
    from dear.data.loading import held_notes

    with held_notes(), progress_console().status("comparing"):
        comparison = compare(first, second, data, out, dataset=dataset, **vars(options))
    page = None if out is None else expanded(out) / PAGE
    return {**vars(comparison), "verdict": comparison.verdict.splitlines(), "page": page}


def render_compare(result: dict[str, Any], console: PrintableConsole) -> None:
    """Show the classes and the images on which they differ, then what that means."""
    first, second = result["first"].name, result["second"].name
    unequal = [row for row in result["per_class"] if row.only_first or row.only_second]
    if unequal:
        rows = [(row.name, row.images, row.first_right, row.second_right) for row in unequal]
        console.print(table(None, ("class", "images", f"right with {first}", f"right with {second}"), rows))
    if images := result["differences"]:
        rows = [(image.image, image.label, image.first, image.second) for image in images[:SHOWN]]
        console.print(table(None, ("image", "class", first, second), rows))
        more = len(images) - SHOWN
        console.say(*([f"... and {more} more, with --json or --out"] if more > 0 else []))
    console.say(*result["verdict"], *([f"page: {result['page']}"] if result["page"] else []))
