"""`dear eval`: measure a bundle on a data set; `dear compare`: measure two on the same images."""

from dataclasses import fields
from pathlib import Path
from typing import Any, Literal

from dear.adapters.facts import BundleScores
from dear.adapters.operating import OperatingGoal
from dear.adapters.operating_words import describe_decided, describe_point
from dear.adapters.wording import list_metrics, verdict
from dear.cli.options import BundleName, BundleOptions, ClusterOptions, DataName, Steering
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
    precision: float | None = None,
    costs: str | None = None,
    per_class: bool = False,
    by: str | None = None,
    split: Literal["test", "val", "train"] = "test",
    classes: Literal["bundle", "data"] = "bundle",
    steering: Flat[Steering] = Steering(),
    options: Flat[BundleOptions] = BundleOptions(),
    many: Flat[ClusterOptions] = ClusterOptions(),
    dataset: DataSettings = DataSettings(),
) -> dict[str, Any]:
    """Measure a classifier on a data set.

    The measures are accuracy beside zero-shot and chance, log-loss, calibration error, and the accuracy of
    each class. If the data has no split, all images are tested, except those that the bundle was fitted on.

    Args:
        out: Folder to write a page to: confusion matrix, scores of each class, the most confident mistakes,
            and a reliability diagram. Each figure is also an SVG and a PDF file. By default no page is
            written.
        others: Folder, archive or table of images of none of the classes, to measure how many of them are
            taken for one.
        precision: Find the least probability at which this share of the decided images is right, such as
            0.99, on these images. An operating point of the bundle itself is measured without this option.
        costs: What mistakes cost, as for dear fit.
        per_class: Find a probability for each class.
        by: List the accuracy by group, the worst first: a column of the table, month or camera (from EXIF
            data), or a regular expression whose match in a file's path is the group.
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
    OperatingGoal.of(precision, costs, per_class=per_class)
    cluster = many.find(options.device)
    from dear.adapters.evaluation import evaluate  # loads torch: what can be refused is
    from dear.data.loading import deferred_warnings

    with deferred_warnings(), progress_console().status("scoring"):
        predictor = options.load(bundle, **steered)
        encode = None
        if cluster is not None:
            from dear.cluster.jobs import features_on

            of_backbone = {} if options.pretrained is None else {"pretrained": options.pretrained}
            encode = features_on(cluster, predictor.bundle, **of_backbone)
        how: dict[str, Any] = {"split": split, "own_classes": classes == "bundle", "others": others, "by": by}
        goal: dict[str, Any] = {"precision": precision, "costs": costs, "per_class": per_class}
        found = evaluate(predictor, data, out, **how, **goal, dataset=dataset, encode=encode)
    return {
        **vars(found.scores),
        "operating": found.operating,
        "promised": predictor.bundle.training.operating,
        "by": by,
        "by_group": found.by_group,
        "page": found.files[0] if found.files else None,
        "files": found.files,
    }


def render(result: dict[str, Any], console: PrintableConsole) -> None:
    """Show accuracy per class, worst first, all metrics, and what they mean."""
    from dear.adapters.by_group import describe_groups  # loads torch, as the command has

    worst = sorted(result["per_class"].items(), key=lambda row: row[1])
    console.print(table(None, ("class", "accuracy"), [(name, 100 * share) for name, share in worst]))
    if rows := result["by_group"]:
        columns = (result["by"], *[*rows[0].cells][1:])
        console.print(table(None, columns, [tuple(row.cells.values()) for row in rows]))
    skipped = f" (without {result['left_out']} that the bundle was fitted on)" if result["left_out"] else ""
    scores = BundleScores(**{field.name: result[field.name] for field in fields(BundleScores)})
    titles = ", ".join(f"{title} {value}" for title, value in list_metrics(scores, 2).items())
    console.say(
        f"{result['data']}, {plural(result['images'], result['split'] + ' image')}{skipped}, "
        f"{plural(result['classes'], 'class')}: {titles}",
        *verdict(scores),
        *describe_decided(result["promised"], scores.decided),
        *describe_point(result["operating"]),
        *describe_groups(result["by"] or "", result["by_group"]),
        *([f"page: {result['page']}"] if result["page"] else []),
    )


def command_compare(
    first: BundleName,
    second: str,
    data: DataName,
    *,
    out: Path | None = None,
    by: str | None = None,
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
        by: List the difference by group, the worst first: a column of the table, month or camera (from EXIF
            data), or a regular expression whose match in a file's path is the group.
        dataset: How the data set is read.
    """
    from dear.adapters.bundle_config import check_bundle
    from dear.data.names import check_name

    for bundle in (first, second):
        check_bundle(bundle)
    check_name(data, dataset)
    from dear.adapters.compare import PAGE, compare  # loads torch: what can be refused without it is
    from dear.data.loading import deferred_warnings

    with deferred_warnings(), progress_console().status("comparing"):
        device, pretrained = options.device, options.pretrained
        comparison = compare(
            first, second, data, out, dataset=dataset, device=device, pretrained=pretrained, by=by
        )
    page = None if out is None else expanded(out) / PAGE
    return {**vars(comparison), "verdict": comparison.verdict.splitlines(), "by": by, "page": page}


def render_compare(result: dict[str, Any], console: PrintableConsole) -> None:
    """Show the classes and the images on which they differ, then what that means."""
    first, second = result["first"].name, result["second"].name
    unequal = [row for row in result["per_class"] if row.only_first or row.only_second]
    if unequal:
        rows = [(row.name, row.images, row.first_right, row.second_right) for row in unequal]
        console.print(table(None, ("class", "images", f"right with {first}", f"right with {second}"), rows))
    if groups := result["by_group"]:
        columns = (result["by"], "images", f"right with {first}", f"right with {second}", "points", "95%")
        of_groups = [
            (row.name, row.images, row.first_right, row.second_right, f"{100 * row.difference:+z.1f}",
             f"{100 * row.low:+z.1f} to {100 * row.high:+z.1f}")
            for row in groups
        ]  # fmt: skip
        console.print(table(None, columns, of_groups))
    if images := result["differences"]:
        rows = [(image.image, image.label, image.first, image.second) for image in images[:SHOWN]]
        console.print(table(None, ("image", "class", first, second), rows))
        more = len(images) - SHOWN
        console.say(*([f"... and {more} more, with --json or --out"] if more > 0 else []))
    console.say(*result["verdict"], *([f"page: {result['page']}"] if result["page"] else []))
