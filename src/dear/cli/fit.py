"""`dear fit`: adapt a backbone to your images and save the adapter as a folder."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from rich.console import Console

from dear.adapters.results import FEWEST, describe_choice
from dear.backbone.choice import check_model
from dear.cli.run import collect_settings
from dear.data.settings import DataSettings
from dear.errors import plural
from dear.evaluation.resolve import Select
from dear.methods.declaration import MethodSettings
from dear.methods.registry import AUTO, known_method
from dear.review.rows import REVIEW_PAGE, SHARE, Issue, describe_issues
from dear.training.settings import TrainOptions


@dataclass(frozen=True)
class Fitted:
    """Where the bundle is, its contents, and results on test images (fractions)."""

    out: Path
    method: str
    backbone: str
    classes: int
    parameters: int
    bytes: int
    temperature: float
    metrics: dict[str, Any]
    verdict: list[str]
    choice: list[str]
    candidates: list[dict[str, Any]]
    test_images: int
    train_images: int
    calibration_images: int
    judged_labels: int
    review: tuple[Issue, ...] | None


def command(
    data: str,
    *more: str,
    out: Path,
    method: str = AUTO,
    model: str | None = None,
    pretrained: str | None = None,
    roles: Path | None = None,
    shots: int | None = None,
    seed: int = 1,
    calibrate: bool | None = None,
    review: bool = True,
    refuse: float = SHARE,
    overwrite: bool = False,
    device: Literal["auto", "cpu", "cuda"] = "auto",
    train: TrainOptions = TrainOptions(),  # noqa: B008 (frozen, and its fields become options)
    select: Select = "last",
    dataset: DataSettings = DataSettings(),  # noqa: B008
    **settings: MethodSettings,
) -> Fitted:
    """Adapt a backbone to all classes of your images, and write the adapter as a folder: a bundle.

    The bundle holds the trained parameters, not the backbone. `dear predict` and `dear eval` use it. An
    interrupted fit continues when the same command is given again.

    Args:
        data: A folder of images, a CSV or JSONL file, a zip, a benchmark or a task by name.
        more: Further ones, added to the first, as a table of corrections: an image has the class that the
            last of them gives it.
        out: Folder of the bundle.
        method: Method: `dear methods` lists them. auto tries some on the training images and takes the best.
        model: Backbone: an open_clip architecture, lite or tiny. If not given, ViT-B-16 with
            laion2b_s34b_b88k, which is fetched from the hub once (about 600 MB); for a task of the Attribute
            World, tiny.
        pretrained: Weights: an open_clip tag, a local file, or random:SEED.
        roles: Role table of these weights: a file (JSON), discovered, ground-truth or published. discover
            finds one from the training images first. By default the package's table, if it has one.
        shots: Training images per class. By default all.
        seed: Seed of the few-shot pick, the order, the views and the initial parameters.
        calibrate: Fit the temperature of probabilities on validation images or unused training images. By
            default where there are at least 20 of them.
        review: Look for labels that look wrong and for pictures that are there twice: review.html and
            review.csv in the folder.
        refuse: Share of images of the classes that may be refused as none of these. 0 refuses nothing.
        overwrite: Replace the bundle in the folder.
        device: Where to compute; auto uses the GPU if there is one.
        train: Settings of training; by default as published for the method.
        select: Keep the last epoch, or the best one on validation images.
        dataset: How the data set is read.
        settings: Settings of the methods, such as --dear.beta or --coop.tokens.
    """
    from dear.adapters.bundle_config import ADAPTER
    from dear.cli.progress import StepProgress
    from dear.data.names import check_name

    method = method if method == AUTO else known_method(method)
    settings_by_method = collect_settings([method], settings)
    for source in (data, *more):
        check_name(source, dataset)
    check_model(model)
    from dear.adapters.fit import fit  # loads torch: what can be refused without it is

    with StepProgress() as progress:
        bundle = fit(
            [data, *more] if more else data,
            out,
            method=method,
            model=model,
            pretrained=pretrained,
            roles=roles,
            shots=shots,
            seed=seed,
            settings=settings_by_method.get(method),
            train=train,
            select=select,
            dataset=dataset,
            calibrate=calibrate,
            review=review,
            refuse=refuse,
            overwrite=overwrite,
            device=device,
            progress=progress,
            verbose=False,
        )
    facts = bundle.training
    return Fitted(
        out=out,
        method=bundle.method,
        backbone=str(bundle.weights),
        classes=len(bundle.classes),
        parameters=bundle.parameters,
        bytes=(out / ADAPTER).stat().st_size,
        temperature=bundle.temperature,
        metrics=dict(bundle.metrics),
        verdict=bundle.findings,
        choice=describe_choice(bundle.method, facts),
        candidates=bundle.candidates,
        test_images=facts["test_images"],
        train_images=facts["train_images"],
        calibration_images=facts.get("calibration_images", 0),
        judged_labels=facts.get("judged_labels", 0),
        review=bundle.review,
    )


def render(result: Fitted, console: Console) -> None:
    """Show what the measurements mean, where the bundle is, and what to do next."""
    calibrated = f"temperature {result.temperature:.3g} from {plural(result.calibration_images, 'image')}"
    if not result.calibration_images:
        calibrated = "probabilities not calibrated"
        if (shots := (result.train_images - FEWEST) // result.classes) > 0:
            spared = result.train_images - shots * result.classes
            calibrated += f" (--shots {shots} keeps {spared} or more training images for that)"
    tested = [f"On {plural(result.test_images, 'test image')}:", *(f"  {line}" for line in result.verdict)]
    steps = {f"dear predict {result.out} IMAGE...": "classify images"}
    if result.verdict:
        steps[f"dear eval {result.out} DATA --out page"] = "see the mistakes"
    steps[f"dear serve {result.out}"] = "try it in a browser"
    found = describe_issues(result.review, result.judged_labels, str(result.out / REVIEW_PAGE))
    lines = [
        f"{result.method} on {result.backbone}: {plural(result.classes, 'class')}, "
        f"{plural(result.train_images, 'training image')}, "
        f"{plural(result.parameters, 'trained parameter')} ({result.bytes / 1e6:.2f} MB), {calibrated}",
        *result.choice,
        *(tested if result.verdict else ["Not tested: no image was left for testing."]),
        f"bundle: {result.out}",
        *found,
        "next:",
        *(f"  {words:{max(map(len, steps))}}  {purpose}" for words, purpose in steps.items()),
    ]
    console.print("\n".join(lines), markup=False, soft_wrap=True)
