"""What an export tells of itself. Light to import, so that commands can show it without loading torch."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

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
