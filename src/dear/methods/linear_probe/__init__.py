"""Settings and declaration of the linear probe."""

from dataclasses import dataclass

from dear.methods.declaration import Declaration, MethodSettings, SmallInt
from dear.reading.typed import PositiveFloat


@dataclass(frozen=True)
class LinearProbeSettings(MethodSettings):
    """Settings of the linear probe. Its authors sweep ``c`` on validation images; nothing is searched here.

    Attributes:
        c: Weight of the training images' loss against half the squared weights, as scikit-learn's C; the
            default is that of the example that CLIP's authors publish.
        iterations: Most iterations of L-BFGS.
    """

    c: PositiveFloat = 0.316
    iterations: SmallInt = 1000


METHOD = Declaration(
    "linear-probe",
    "2103.00020",
    "LinearProbe",
    LinearProbeSettings,
    trains="at once",
    cheap=True,
    open_vocabulary=False,
    cosine_scores=False,
    image="features",
    text="features",
)
