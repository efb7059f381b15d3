"""Settings and declaration of ProLIP."""

from dataclasses import dataclass

from dear.methods.declaration import Declaration, MethodSettings, SmallInt
from dear.reading.typed import NonNegativeFloat, PositiveFloat


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

    epochs: SmallInt = 300
    lr: PositiveFloat = 1e-5
    reg_weight: NonNegativeFloat | None = None
    views: SmallInt = 300
    scale: PositiveFloat | None = 100.0


METHOD = Declaration(
    "prolip", "2410.05270", "ProLIP", ProLipSettings, trains="at once", image="layers", text="features"
)
