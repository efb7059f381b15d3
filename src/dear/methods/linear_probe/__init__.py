"""Settings and declaration of the linear probe."""

from dataclasses import dataclass
from types import MappingProxyType

from dear.methods.declaration import ABOVE_0, COUNT, Declaration, MethodSettings


@dataclass(frozen=True)
class LinearProbeSettings(MethodSettings):
    """Settings of the linear probe. Its authors sweep ``c`` on validation images; nothing is searched here.

    Attributes:
        c: Weight of the training images' loss against half the squared weights, as scikit-learn's C; the
            default is that of the example that CLIP's authors publish.
        iterations: Most iterations of L-BFGS.
    """

    bounds = MappingProxyType({"c": ABOVE_0, "iterations": COUNT})

    c: float = 0.316
    iterations: int = 1000


METHOD = Declaration(
    "linear-probe",
    "2103.00020",
    "LinearProbe",
    LinearProbeSettings,
    open_vocabulary=False,
    image="features",
    text="features",
)
