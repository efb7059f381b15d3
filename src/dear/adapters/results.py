"""Results of evaluating and exporting a bundle. Light to import, so that commands can show them without
loading torch.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal


@dataclass(frozen=True)
class BundleScores:
    """Accuracy, log-loss and calibration error on labelled images. A field with the name of a metric
    (`dear.evaluation.metrics`) holds its value.

    Attributes:
        classes: Number of candidate classes.
        accuracy, top5: Share of the images whose class is ranked first, or among the first five.
        zero_shot: The accuracy of the backbone without the adapter, with the bundle's templates.
        chance: Accuracy of guessing: 1 / classes.
        log_loss: In nats, with the bundle's temperature.
        calibration_error: Expected calibration error (fraction), with the bundle's temperature.
        per_class: Accuracy per class, for the classes that have images.
    """

    data: str
    split: str
    images: int
    classes: int
    accuracy: float = field(metadata={"title": "accuracy", "unit": "%"})
    top5: float = field(metadata={"title": "top 5", "unit": "%"})
    zero_shot: float = field(metadata={"title": "zero-shot", "unit": "%"})
    chance: float = field(metadata={"title": "chance", "unit": "%"})
    log_loss: float = field(metadata={"title": "log-loss", "unit": "nats"})
    calibration_error: float = field(metadata={"title": "calibration error", "unit": "%"})
    per_class: dict[str, float]


def shown_metrics(metrics: Mapping[str, Any], decimals: int) -> dict[str, str]:
    """The metrics of a bundle as text, by their titles; ``decimals`` are those of a percentage."""
    shown = {}
    for column in fields(BundleScores):
        if column.metadata and column.name in metrics:
            value, unit = metrics[column.name], column.metadata["unit"]
            text = f"{100 * value:.{decimals}f}%" if unit == "%" else f"{value:.{decimals + 1}f} {unit}"
            shown[column.metadata["title"]] = text
    return shown


def summary(metrics: Mapping[str, Any]) -> str:
    """All metrics of a bundle in one line, the accuracy beside zero-shot and chance."""
    texts = shown_metrics(metrics, 2)
    accuracy, zero_shot, chance = (texts.pop(title) for title in ("accuracy", "zero-shot", "chance"))
    others = "".join(f", {title} {text}" for title, text in texts.items())
    return f"accuracy {accuracy} (zero-shot {zero_shot}, chance {chance}){others}"


ExportForm = Literal["onnx", "torch-export"]


@dataclass(frozen=True)
class Exported:
    """An exported model.

    Attributes:
        classes: Number of classes built in; None for the image tower alone.
        checked: Number of images on which it was compared with torch, including random ones.
        difference: The largest difference of a logit (or of a feature) on them.
        same_best: On how many of them the best class agrees; None for the image tower alone.
    """

    path: Path
    form: ExportForm
    outputs: tuple[str, ...]
    classes: int | None
    bytes: int
    checked: int
    difference: float
    same_best: int | None
