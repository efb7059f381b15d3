"""`dear fit`: adapt a backbone to your images and save the adapter as a folder."""

from collections.abc import Mapping
from pathlib import Path
from shlex import quote
from typing import Any

from dear.adapters.operating import OperatingGoal
from dear.cli.options import DataName, FitOptions
from dear.cli.output import PrintableConsole
from dear.cli.parsing import Flat, UsageError, command_line
from dear.cli.run import collect_settings
from dear.curation.issues import REFUSED_SHARE, REVIEW_PAGE
from dear.evaluation.experiment import TrainOverrides
from dear.evaluation.resolve import Select
from dear.methods.registry import AUTO, known_method
from dear.reading.files import expanded
from dear.text import plural


def command(
    data: DataName,
    more: list[str] = [],  # noqa: B006 (never changed)
    *,
    out: Path | None = None,
    method: str = AUTO,
    options: Flat[FitOptions] = FitOptions(),
    unlabeled: Path | None = None,
    add_classes: list[str] | None = None,
    review: bool = True,
    refuse: float = REFUSED_SHARE,
    precision: float | None = None,
    costs: str | None = None,
    per_class: bool = False,
    continue_: Path | None = None,
    overwrite: bool = False,
    train: TrainOverrides = {},  # noqa: B006 (never changed)
    select: Select = "last",
    **settings: Mapping[str, Any],
) -> dict[str, Any]:
    """Fit a classifier to your images, and write it into a folder, the bundle.

    A backbone (a CLIP) is adapted to all classes of the images. The bundle holds what was trained, but not
    the backbone; `dear predict`, `dear eval` and other commands use it. If a fit is interrupted, give the
    same command again, and it continues.

    Args:
        more: Further data that is added to the first, such as a table of corrections. An image that is in
            several data sets has the class that the last of these gives it.
        out: Folder to write the bundle to. With --continue, the default is the folder of the earlier bundle,
            which is then replaced.
        method: The method; `dear methods` lists them. auto tries some on training images that are left out
            in turn. It takes dear+ if the backbone has a role table and ensemble otherwise, unless another
            gets clearly more of these images right.
        unlabeled: Folder, archive or table of images without labels, which are used if this improves the
            scores of left-out labeled images. Only dear+ can use them.
        add_classes: Further classes, by name alone, without images. Separate the names by commas.
        review: Look for labels that look wrong and for images that are there twice, and write review.html and
            review.csv into the folder.
        refuse: Share of the images of the classes that may be called none of these. With 0 no image is.
        precision: Share of the decided images that shall be right, such as 0.99. The other images go to a
            person. The least probability for this is found on images that are left out of the fit.
        costs: What mistakes cost, in place of --precision: a CSV file with the columns class, predicted and
            cost, or words such as "defect=50,to a person=2". Other mistakes cost 1. Each image is then
            decided by its expected cost.
        per_class: Promise the precision for each class that is decided. Classes with too few images are not.
        continue_: Folder of an earlier bundle, which the new one replaces unless --out names another folder.
            Its backbone, class names and share of test images are the defaults. With auto, its method stays
            if it is within one standard error of the best.
        overwrite: Replace the bundle that is in the folder.
        train: Settings of training; by default as published for the method.
        select: Keep the last epoch, or the epoch that is best on validation images.
        settings: Settings of the methods, such as --dear.beta or --coop.tokens.
    """
    from dear.adapters.bundle_config import ADAPTER, read_config
    from dear.cli.progress import StepProgress
    from dear.data.names import require_folder

    if (place := out or continue_) is None:
        raise UsageError("--out is missing: give the folder that the bundle is written to.")
    if continue_ is not None:
        read_config(expanded(continue_))  # a record of a run is no bundle
    OperatingGoal.of(precision, costs, per_class=per_class)
    method = method if method == AUTO else known_method(method)
    settings_by_method = collect_settings([method], settings)
    options.check_all([data, *more])
    require_folder(unlabeled)
    from dear.adapters.fit import fit  # loads torch: what can be refused without it is

    with StepProgress() as progress:
        bundle = fit(
            [data, *more] if more else data,
            place,
            method=method,
            **vars(options),
            settings=settings_by_method.get(method),
            train=train,
            select=select,
            unlabeled=unlabeled,
            add_classes=add_classes or (),
            review=review,
            refuse=refuse,
            precision=precision,
            costs=costs,
            per_class=per_class,
            continue_from=continue_,
            overwrite=overwrite or place == continue_,
            progress=progress,
            verbose=False,
            command=command_line.get(),
        )
    facts, scores = bundle.training, bundle.scores
    return {
        "out": place,
        "method": bundle.method,
        "backbone": str(bundle.weights),
        "classes": len(bundle.classes),
        "parameters": bundle.parameters,
        "bytes": (expanded(place) / ADAPTER).stat().st_size,
        "temperature": bundle.temperature,
        "scores": scores,
        "verdict": bundle.verdict.splitlines(),
        "candidates": facts.candidates,
        "operating": facts.operating,
        "review": bundle.review,
        "train_images": facts.train_images,
        "calibration_images": facts.calibration_images,
        "test_images": 0 if scores is None else scores.images,
    }


def render(result: dict[str, Any], console: PrintableConsole) -> None:
    """Show what the measurements mean, where the bundle is, and what to do next."""
    out, images, classes = (result[key] for key in ("out", "train_images", "classes"))
    calibrated = "probabilities not calibrated"
    if count := result["calibration_images"]:
        calibrated = f"temperature {result['temperature']:.3g} from {plural(count, 'image')}"
    place = quote(str(out))
    steps = {f"dear predict {place} IMAGE...": "classify images"}
    if result["test_images"]:
        steps[f"dear eval {place} DATA --out page"] = "see the mistakes"
    if result["review"]:
        steps[f"open {quote(str(out / REVIEW_PAGE))}"] = "see what looks wrong"
    steps[f"dear serve {place}"] = "try it in a browser"
    console.say(
        f"{result['method']} on {result['backbone']}: {plural(classes, 'class')}, "
        f"{plural(images, 'training image')}, {plural(result['parameters'], 'trained parameter')} "
        f"({result['bytes'] / 1e6:.2f} MB), {calibrated}",
        *result["verdict"],
        f"bundle: {out}",
        "next:",
        *(f"  {words:{max(map(len, steps))}}  {purpose}" for words, purpose in steps.items()),
    )
