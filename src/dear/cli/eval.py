"""`dear eval`: measure a bundle on a data set."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from dear.adapters.results import BundleScores, shown_metrics, verdict
from dear.cli.output import PrintableConsole, progress_console, table
from dear.data.settings import DataSettings
from dear.errors import plural


@dataclass(frozen=True)
class Evaluated(BundleScores):
    """The scores, and the page with all its files if one was asked for."""

    page: Path | None = None
    files: tuple[Path, ...] = ()


def command(
    bundle: str,
    data: str,
    *,
    out: Path | None = None,
    others: Path | None = None,
    split: Literal["test", "val", "train"] = "test",
    classes: Literal["bundle", "data"] = "bundle",
    pretrained: str | None = None,
    device: Literal["auto", "cpu", "cuda"] = "auto",
    dataset: DataSettings = DataSettings(),  # noqa: B008 (frozen, and its fields become options)
) -> Evaluated:
    """Measure a bundle on a data set: accuracy beside zero-shot and chance, log-loss, calibration error,
    accuracy per class. Without a split all images are for testing; those that the bundle was fitted on are
    left out.

    Args:
        bundle: Folder of the bundle, or OWNER/NAME on the hub.
        data: A folder of images, a CSV or JSONL file, a zip, a benchmark or a task by name.
        out: Folder of a page: confusion matrix, scores by class, the most confident mistakes, reliability
            diagram, learning curve, attention and a map of the features. Each figure is also written as SVG.
            By default no page is written.
        others: Folder of images of no class of the bundle, to measure how many of them look like one.
        split: Images to score.
        classes: Candidate classes: the bundle's, or the data set's (by name).
        pretrained: Location of the backbone's weights, if they have moved.
        device: Where to compute; auto uses the GPU if there is one.
        dataset: How the data set is read.
    """
    from dear.adapters.bundle_config import check_bundle
    from dear.data.names import check_name, require_folder

    check_bundle(bundle)
    check_name(data, dataset)
    require_folder(others)
    from dear.adapters.bundle import Bundle  # loads torch: what can be refused without it is
    from dear.adapters.evaluation_page import write_evaluation
    from dear.adapters.predictor import Predictor
    from dear.adapters.scoring import evaluate_bundle, measure_others
    from dear.data.loading import held_notes, load_dataset

    loaded = Bundle.from_pretrained(bundle)
    if split == "test" and dataset.test_share == DataSettings.test_share:  # not asked for
        dataset = replace(dataset, test_share=1.0)
    with held_notes(), progress_console().status("scoring"):
        images = load_dataset(data, dataset.skip_broken())
        predictor = Predictor(loaded, device, pretrained=pretrained)
        options: dict[str, Any] = {"split": split, "own_classes": classes == "bundle"}
        let_through = None if others is None else measure_others(predictor, others)
        files: tuple[Path, ...] = ()
        if out is None:
            scores = replace(evaluate_bundle(predictor, images, **options), let_through=let_through)
        else:
            scores, files = write_evaluation(out, predictor, images, let_through=let_through, **options)
    return Evaluated(**vars(scores), page=files[0] if files else None, files=files)


def render(result: Evaluated, console: PrintableConsole) -> None:
    """Show accuracy per class, worst first, all metrics, and what they mean."""
    worst = sorted(result.per_class.items(), key=lambda row: row[1])
    console.print(table(None, ("class", "accuracy"), [(name, 100 * share) for name, share in worst]))
    left_out = f" (without {result.left_out} that the bundle was fitted on)" if result.left_out else ""
    titles = ", ".join(f"{title} {value}" for title, value in shown_metrics(vars(result), 2).items())
    console.say(
        f"{result.data}, {plural(result.images, f'{result.split} image')}{left_out}, "
        f"{plural(result.classes, 'class')}: {titles}",
        *verdict(vars(result), result.images),
        *([f"page: {result.page}"] if result.page else []),
    )
