"""`dear eval`: measure a bundle on a data set."""

from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Literal

from dear.adapters.facts import BundleScores
from dear.adapters.wording import list_metrics, verdict
from dear.cli.options import BundleOptions
from dear.cli.output import PrintableConsole, progress_console, table
from dear.cli.parsing import Flat
from dear.data.settings import DataSettings
from dear.errors import plural


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
