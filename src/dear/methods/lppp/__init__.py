"""Settings and declaration of LP++."""

from dataclasses import dataclass

from dear.methods.declaration import Declaration, MethodSettings, SmallInt


@dataclass(frozen=True)
class LpppSettings(MethodSettings):
    """Settings of LP++; rates and starts are computed from the images, so there is little to set.

    Attributes:
        iterations: Steps of gradient descent, each on all images.
    """

    iterations: SmallInt = 300


METHOD = Declaration(
    "lp++",
    "2404.02285",
    "LPpp",
    LpppSettings,
    trains="at once",
    cheap=True,
    open_vocabulary=False,
    cosine_scores=False,
    image="features",
    text="features",
)
