"""Settings and declaration of LP++."""

from dataclasses import dataclass
from types import MappingProxyType

from dear.methods.declaration import COUNT, Declaration, MethodSettings


@dataclass(frozen=True)
class LpppSettings(MethodSettings):
    """Settings of LP++; rates and starts are computed from the images, so there is little to set.

    Attributes:
        iterations: Steps of gradient descent, each on all images.
    """

    bounds = MappingProxyType({"iterations": COUNT})

    iterations: int = 300


METHOD = Declaration(
    "lp++", "2404.02285", "LPpp", LpppSettings, open_vocabulary=False, image="features", text="features"
)
