"""Settings and declaration of CLIP-LoRA."""

from dataclasses import dataclass
from types import MappingProxyType
from typing import Annotated

from dear.methods.declaration import Declaration, MethodSettings, SmallInt, Template
from dear.reading.typed import PositiveFloat, Range


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

    rank: SmallInt = 2
    alpha: PositiveFloat = 1.0
    dropout: Annotated[float, Range(0, 1, below=True)] = 0.25
    scale: PositiveFloat | None = 100.0
    template: Template = ""


METHOD = Declaration("clip-lora", "2405.18541", "ClipLora", ClipLoraSettings, image="layers", text="layers")
