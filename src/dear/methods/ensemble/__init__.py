"""Settings and declaration of the ensemble."""

from dataclasses import dataclass
from typing import Annotated

from dear.methods.declaration import Declaration, MethodSettings
from dear.reading.typed import Range


@dataclass(frozen=True)
class EnsembleSettings(MethodSettings):
    """Settings of the ensemble [ours]. What it is made of was chosen by cross-validation on the training
    images of other people's pictures (recipes/study/PREDICTIONS.md, twentieth round).

    Attributes:
        views: Random views of each image that some of the classifiers are fitted to, beside the test view.
        penalty: Weight of the squared weights of the classifiers, where these are fitted to left-out images.
    """

    views: Annotated[int, Range(0, 10_000)] = 2
    penalty: Annotated[float, Range(0, 1000)] = 0.1


METHOD = Declaration(
    "ensemble",
    "2611",
    "Ensemble",
    EnsembleSettings,
    trains="at once",
    cheap=True,
    cosine_scores=False,
    image="features",
    text="features",
)
