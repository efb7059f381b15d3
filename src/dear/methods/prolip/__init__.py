"""Settings and declaration of ProLIP."""

from dataclasses import dataclass
from types import MappingProxyType

from dear.methods.declaration import ABOVE_0, AT_LEAST_0, COUNT, SCALE, Declaration, MethodSettings


@dataclass(frozen=True)
class ProLipSettings(MethodSettings):
    """Settings of ProLIP; the defaults are those of its authors' runs without validation images in
    base-to-novel and transfer, on ViT-B/16. In few-shot learning they also run rates from 1e-5 to 1e-2.

    Attributes:
        epochs: Steps, each on all images.
        lr: Learning rate of the first step.
        reg_weight: Weight of the squared distance from CLIP's projection; none is 1 / shots.
        views: Random views of each image, one for each step in turn.
        scale: Factor on the cosines in the scores, a constant of the authors. none takes the backbone's.
    """

    bounds = MappingProxyType(
        {
            "epochs": COUNT,
            "lr": ABOVE_0,
            "reg_weight": ("at least 0, or none", lambda value: value is None or AT_LEAST_0[1](value)),
            "views": COUNT,
            "scale": SCALE,
        }
    )

    epochs: int = 300
    lr: float = 1e-5
    reg_weight: float | None = None
    views: int = 300
    scale: float | None = 100.0


METHOD = Declaration("prolip", "2410.05270", "ProLIP", ProLipSettings, image="layers", text="features")
