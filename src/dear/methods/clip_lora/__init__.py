"""Settings and declaration of CLIP-LoRA."""

from dataclasses import dataclass
from types import MappingProxyType

from dear.methods.declaration import ABOVE_0, COUNT, SCALE, TEMPLATE, Declaration, MethodSettings


@dataclass(frozen=True)
class ClipLoraSettings(MethodSettings):
    """Settings of CLIP-LoRA; the defaults are the published ones, which are the same for all data sets and
    numbers of shots.

    Attributes:
        rank: Rank of the update of each weight.
        alpha: The updates are multiplied by alpha / sqrt(rank).
        dropout: Share of the values of each update's input that are dropped in training.
        scale: Factor on the cosines in the scores, a constant of the authors. none takes the backbone's.
        template: Template of the prompts; the data set's own if empty.
    """

    training = MappingProxyType(
        {
            "optimizer": "adamw",
            "lr": 2e-4,
            "steps_per_shot": 500,
            "batch": 32,
            "warmup_epochs": 0,
            "schedule": "step",
            "lr_end": 1e-6,
            "weight_decay": 0.01,
            "crop": 0.08,
        }
    )
    bounds = MappingProxyType(
        {
            "rank": COUNT,
            "alpha": ABOVE_0,
            "dropout": ("at least 0 and below 1", lambda value: 0 <= value < 1),
            "scale": SCALE,
            "template": TEMPLATE,
        }
    )

    rank: int = 2
    alpha: float = 1.0
    dropout: float = 0.25
    scale: float | None = 100.0
    template: str = ""


METHOD = Declaration("clip-lora", "2405.18541", "ClipLora", ClipLoraSettings, image="layers", text="layers")
