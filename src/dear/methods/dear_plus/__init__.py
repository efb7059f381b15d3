"""Settings and declaration of DeAR+."""

from dataclasses import dataclass
from typing import Annotated

from dear.methods.declaration import Declaration, Layer, MethodSettings
from dear.reading.typed import PositiveFloat, Range


@dataclass(frozen=True)
class DearPlusSettings(MethodSettings):
    """Settings of DeAR+ [ours]. The defaults were chosen on check images of the Attribute World's calibrated
    tasks (recipes/study/LOG.md).

    Attributes:
        first: J, the first layer whose heads are read, of 12. In other towers it is scaled to the depth.
        views: Random views of each training image, beside the test view.
        shrinkage: How far each covariance within classes is shrunk towards its mean variance. By default, of
            eight values from 0.02 to 0.8, the one by which left-out images are likeliest.
        spread: Variance of the means of all classes, known or not, divided by the variance of images within a
            class.
        penalty: Weight of the squared correction of the class feature.
        roles_from_other_weights: Accept a role table computed from other weights.
    """

    first: Layer = 9
    views: Annotated[int, Range(0, 10_000)] = 2
    shrinkage: Annotated[float, Range(0, 1, above=True)] | None = None
    spread: PositiveFloat = 1.0
    penalty: PositiveFloat = 3.0
    roles_from_other_weights: bool = False


METHOD = Declaration(
    "dear+",
    "2611",
    "DearPlus",
    DearPlusSettings,
    trains="at once",
    cheap=True,
    roles="optional",
    cosine_scores=False,
    image="features",
    text="features",
)
