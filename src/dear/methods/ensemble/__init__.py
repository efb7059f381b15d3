"""Settings and declaration of the ensemble."""

from dataclasses import dataclass
from types import MappingProxyType

from dear.methods.declaration import AT_LEAST_0, Declaration, MethodSettings


@dataclass(frozen=True)
class EnsembleSettings(MethodSettings):
    """Settings of the ensemble [ours]. What it is made of was chosen by cross-validation on the training
    images of other people's pictures (recipes/study/PREDICTIONS.md, twentieth round).

    Attributes:
        penalty: Weight of the squared weights of the classifiers, where these are fitted to left-out images.
    """

    bounds = MappingProxyType({"penalty": AT_LEAST_0})

    penalty: float = 0.01


METHOD = Declaration("ensemble", "2611", "Ensemble", EnsembleSettings, image="features", text="features")
