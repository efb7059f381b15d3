"""Settings and declaration of DeAR+."""

from dataclasses import dataclass
from types import MappingProxyType

from dear.methods.declaration import ABOVE_0, AT_LEAST_0, LAYER, Declaration, MethodSettings


@dataclass(frozen=True)
class DearPlusSettings(MethodSettings):
    """Settings of DeAR+ [ours]. The defaults were chosen on check images of the Attribute World's calibrated
    tasks (recipes/study/LOG.md).

    Attributes:
        first: J, the first layer whose heads are read, in a tower of 12; in other towers the readouts keep
            their share of the layers.
        views: Random views of each training image, beside the test view.
        shrinkage: Share of the mean variance in each attribute's covariance within classes; if None, the one
            of eight from 0.02 to 0.8 at which left-out images are likeliest.
        spread: Variance of the means of all classes, known or not, over that of images within a class.
        penalty: Weight of the squared correction of the class feature.
        roles_from_other_weights: Accept a role table computed from other weights.
    """

    bounds = MappingProxyType(
        {"first": LAYER, "views": AT_LEAST_0, "spread": ABOVE_0, "penalty": ABOVE_0}
        | {"shrinkage": ("above 0, up to 1, or none", lambda value: value is None or 0 < value <= 1)}
    )

    first: int = 9
    views: int = 2
    shrinkage: float | None = None
    spread: float = 1.0
    penalty: float = 3.0
    roles_from_other_weights: bool = False


METHOD = Declaration(
    "dear+",
    "2611",
    "DearPlus",
    DearPlusSettings,
    needs_roles=True,
    without_roles=True,
    image="features",
    text="features",
)
