"""What measuring and exporting a bundle return. Light to import, so that commands can show it without loading
torch.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal


@dataclass(frozen=True)
class BundleScores:
    """Accuracy, log-loss and calibration error on labelled images.

    Attributes:
        classes: How many classes were told apart.
        accuracy, top5: Share of the images whose class is the best, or among the best five.
        log_loss: In nats, with the bundle's temperature.
        calibration_error: Expected calibration error (fraction), with the bundle's temperature.
        per_class: Accuracy by class, of the classes that have images.
    """

    data: str
    split: str
    images: int
    classes: int
    accuracy: float
    top5: float
    log_loss: float
    calibration_error: float
    per_class: dict[str, float]


ExportForm = Literal["onnx", "torch-export"]


@dataclass(frozen=True)
class Exported:
    """An exported model.

    Attributes:
        classes: How many classes are baked in; None for the image tower alone.
        checked: Images that it was compared with torch on, random ones included.
        difference: The largest difference of a logit (or of a feature) on them.
        same_best: On how many of them the best class is the same; None for the image tower alone.
    """

    path: Path
    form: ExportForm
    outputs: tuple[str, ...]
    classes: int | None
    bytes: int
    checked: int
    difference: float
    same_best: int | None
