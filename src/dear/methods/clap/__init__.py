"""Settings and declaration of CLAP."""

from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from dear.methods.declaration import Declaration, MethodSettings, SmallInt
from dear.reading.typed import PositiveFloat


@dataclass(frozen=True)
class ClapSettings(MethodSettings):
    """Settings of CLAP; the defaults are those of all its authors' runs, which search nothing.

    Attributes:
        constraint: "l2" holds each class vector near its text feature (CLAP); "none" does not (ZS-LP, the
            linear probe that starts from text features).
        epochs: Number of passes. A pass takes about as many features as there are images, drawn from the
            features of all their random views.
        batch: Features in a step.
        lr: Learning rate after the first epoch.
        views: Random views of each image.
    """

    training = MappingProxyType({"crop": 0.08})

    constraint: Literal["l2", "none"] = "l2"
    epochs: SmallInt = 300
    batch: SmallInt = 256
    lr: PositiveFloat = 0.1
    views: SmallInt = 20


METHOD = Declaration(
    "clap",
    "2312.12730",
    "CLAP",
    ClapSettings,
    trains="at once",
    cheap=True,
    open_vocabulary=False,
    image="features",
    text="features",
)
