"""Settings and declaration of CLIP-LoRA."""

from dataclasses import dataclass
from types import MappingProxyType

from dear.methods.declaration import ABOVE_0, COUNT, SCALE, Declaration
from dear.methods.shared_settings import TemplateSettings, templates_of


@dataclass(frozen=True)
class ClipLoraSettings(TemplateSettings):
    """Settings of CLIP-LoRA; the defaults are the published ones, which are the same for all data sets and
    numbers of shots.

    Attributes:
        rank: Rank of the update of each weight.
        alpha: The updates are multiplied by alpha / sqrt(rank).
        dropout: Share of the values of each update's input that are dropped in training.
        scale: Factor on cosines in the scores: the authors' constant; none uses the backbone's own.
        templates: "per-dataset" uses "a photo of a {}." on the authors' data sets, as they do, and on others
            the data set's own template; "dataset" always uses the data set's own; the name of one of the
            authors' data sets uses theirs for it.
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
            "templates": templates_of("clip_lora"),
        }
    )

    rank: int = 2
    alpha: float = 1.0
    dropout: float = 0.25
    scale: float | None = 100.0


METHOD = Declaration("clip-lora", "2405.18541", "ClipLora", ClipLoraSettings, image="layers", text="layers")
