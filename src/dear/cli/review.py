"""`dear review`: which labels of your images look wrong."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from dear.backbone.choice import check_model
from dear.cli.output import PrintableConsole
from dear.data.settings import DataSettings
from dear.methods.registry import AUTO, known_method
from dear.review.rows import REVIEW_PAGE, Issue, describe_issues


@dataclass(frozen=True)
class Reviewed:
    """What looks wrong among some images, and where it is written."""

    out: Path
    method: str
    images: int
    issues: tuple[Issue, ...]


def command(
    data: str,
    more: list[str] = [],  # noqa: B006 (never changed)
    *,
    out: Path,
    method: str = AUTO,
    model: str | None = None,
    pretrained: str | None = None,
    roles: Path | None = None,
    shots: int | None = None,
    seed: int = 1,
    device: Literal["auto", "cpu", "cuda"] = "auto",
    dataset: DataSettings = DataSettings(),  # noqa: B008 (frozen, and its fields become options)
) -> Reviewed:
    """Find labels that look wrong, and pictures that are there twice, without writing a classifier.

    Each image is judged by a classifier that was fitted without it. `dear fit` does the same for the images
    that it is fitted on.

    Args:
        data: A folder of images, a CSV or JSONL file, a zip, a benchmark or a task by name.
        more: Further ones, added to the first.
        out: Folder of review.html, which shows them, and review.csv, which you correct.
        method: What judges: as of `dear fit`. One that is trained in steps has dear+ judge.
        model: Backbone, as of `dear fit`.
        pretrained: Weights: an open_clip tag, a local file, or random:SEED.
        roles: Role table of these weights, as of `dear fit`.
        shots: Images per class. By default all.
        seed: Seed of the few-shot pick and of the images that are left out together.
        device: Where to compute; auto uses the GPU if there is one.
        dataset: How the data set is read.
    """
    from dear.cli.progress import StepProgress
    from dear.data.names import check_name

    method = method if method == AUTO else known_method(method)
    for source in (data, *more):
        check_name(source, dataset)
    check_model(model)
    from dear.adapters.review_data import review_data  # loads torch: what can be refused without it is

    with StepProgress() as progress:
        review, issues = review_data(
            [data, *more] if more else data,
            out,
            method=method,
            model=model,
            pretrained=pretrained,
            roles=roles,
            shots=shots,
            seed=seed,
            dataset=dataset,
            device=device,
            progress=progress,
        )
    return Reviewed(out, review.method, len(review.judged), issues)


def render(result: Reviewed, console: PrintableConsole) -> None:
    """Say how many there are, and where."""
    console.say(*describe_issues(result.issues, result.images, str(result.out / REVIEW_PAGE)))
