"""Settings and declaration of the Gaussian discriminant."""

from dataclasses import dataclass
from typing import Annotated, Literal

from dear.methods.declaration import Declaration, MethodSettings, SmallInt
from dear.reading.typed import NonNegativeFloat, PositiveFloat, Range

Covariance = Literal["mean", "shrunk"]


@dataclass(frozen=True)
class GdaSettings(MethodSettings):
    """Settings of the Gaussian discriminant; the defaults are those of its base-to-novel runs.

    Attributes:
        alpha: Weight of the discriminant's scores, which are added to zero-shot ones. The authors search it
            on validation images, among powers of ten; here it is fixed. 0.1 is what their search found most
            often in base-to-novel.
        covariance: "mean" is the mean of the classes' covariances; "shrunk" is the pooled covariance, shrunk
            towards a multiple of the identity (Kubokawa and Srivastava), as in the authors' few-shot runs.
        views: Random views of each training image.
        neighbors: How many features of training images describe a class without images: those nearest to its
            text.
        scale: Factor on the cosines with text features, a constant of the authors. none takes the backbone's.
    """

    alpha: NonNegativeFloat = 0.1
    covariance: Covariance = "mean"
    views: SmallInt = 1
    neighbors: Annotated[int, Range(2, 10_000)] = 64
    scale: PositiveFloat | None = 100.0


METHOD = Declaration(
    "gda",
    "2402.04087",
    "GDA",
    GdaSettings,
    trains="at once",
    cheap=True,
    cosine_scores=False,
    image="features",
    text="features",
)
