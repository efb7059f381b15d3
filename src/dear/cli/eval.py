"""`dear eval`: measure a bundle on a data set; `dear compare`: measure two on the same images."""

from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Literal

from dear.adapters.facts import BundleScores
from dear.adapters.wording import list_metrics, verdict
from dear.cli.options import BundleName, BundleOptions, DataName, Steering
from dear.cli.output import PrintableConsole, progress_console, table
from dear.cli.parsing import Flat
from dear.data.settings import DataSettings
from dear.reading.files import expanded
from dear.text import plural

SHOWN = 10  # images that are printed


def command(
    bundle: BundleName,
    data: DataName,
    *,
    out: Path | None = None,
    others: Path | None = None,
    split: Literal["test", "val", "train"] = "test",
    classes: Literal["bundle", "data"] = "bundle",
    steering: Flat[Steering] = Steering(),
    options: Flat[BundleOptions] = BundleOptions(),
    dataset: DataSettings = DataSettings(),
) -> dict[str, Any]:
    """Measure a classifier on a data set.

    The measures are accuracy beside zero-shot and chance, log-loss, calibration error, and the accuracy of
    each class. If the data has no split, all images are tested, except those that the bundle was fitted on.

    Args:
        out: Folder to write a page to: confusion matrix, scores of each class, the most confident mistakes,
            and a reliability diagram. Each figure is also an SVG and a PDF file. By default no page is
            written.
        others: Folder of images of none of the classes, to measure how many of them are taken for one.
        split: Which images to score.
        classes: Whose classes an image can get: the classes of the bundle, or the classes of the data set (by
            name).
        dataset: How the data set is read.
    """
    from dear.adapters.bundle_config import check_bundle
    from dear.data.names import check_name, require_folder

    check_bundle(bundle)
    steered = steering.arguments()
    check_name(data, dataset)
    require_folder(others)
    from dear.adapters.evaluation_page import write_evaluation  # loads torch: what can be refused is
    from dear.adapters.scoring import evaluate_bundle, measure_others
    from dear.data.loading import held_notes, load_dataset

    if split == "test":
        dataset = dataset.with_test_share(1.0)
    with held_notes(), progress_console().status("scoring"):
        predictor = options.load(bundle, **steered)
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
    first: BundleName,
    second: str,
    data: DataName,
    *,
    out: Path | None = None,
    options: Flat[BundleOptions] = BundleOptions(),
    dataset: DataSettings = DataSettings(),
) -> dict[str, Any]:
    """Compare two classifiers on the same images.

    The comparison has both accuracies, their difference with its paired interval and McNemar's exact test,
    and the images on which the two differ. If the data has no split, all images are tested, except those that
    one of the two was fitted on, and those of classes that only one of them has.

    Args:
        second: The bundle that the first is compared with, named in the same way.
        out: Folder to write a page to, with the images on which they differ, and its tables. By default no
            page is written.
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
        device, pretrained = options.device, options.pretrained
        comparison = compare(first, second, data, out, dataset=dataset, device=device, pretrained=pretrained)
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
