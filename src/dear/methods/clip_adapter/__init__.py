"""Settings and declaration of CLIP-Adapter."""

from dataclasses import dataclass
from types import MappingProxyType

from dear.methods.declaration import Declaration, MethodSettings, SmallInt
from dear.reading.typed import Share


@dataclass(frozen=True)
class ClipAdapterSettings(MethodSettings):
    """Settings of CLIP-Adapter; the defaults are those of the public code, trained with CoOp's scripts.

    Attributes:
        ratio: Share of the adapted feature in the mixture; the rest is the image's own feature.
        reduction: Width of the image feature, divided by the width of the bottleneck.
    """

    training = MappingProxyType({"optimizer": "sgd", "lr": 0.002, "epochs": 200, "batch": 32})

    ratio: Share = 0.2
    reduction: SmallInt = 4


METHOD = Declaration(
    "clip-adapter", "2110.04544", "ClipAdapter", ClipAdapterSettings, image="features", text="features"
)
