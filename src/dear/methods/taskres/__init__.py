"""Settings and declaration of TaskRes."""

from dataclasses import dataclass
from types import MappingProxyType

from dear.methods.declaration import Declaration, MethodSettings
from dear.reading.typed import NonNegativeFloat


@dataclass(frozen=True)
class TaskResSettings(MethodSettings):
    """Settings of TaskRes; the defaults are those of its 16-shot scripts.

    Attributes:
        alpha: Factor on the learned residual that is added to a class's text feature.
    """

    training = MappingProxyType({"optimizer": "adam", "lr": 0.002, "epochs": 200, "batch": 256})

    alpha: NonNegativeFloat = 0.5


METHOD = Declaration(
    "taskres",
    "2211.10277",
    "TaskRes",
    TaskResSettings,
    open_vocabulary=False,
    image="features",
    text="features",
)
