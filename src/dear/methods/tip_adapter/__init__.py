"""Settings and declaration of Tip-Adapter."""

from dataclasses import dataclass
from types import MappingProxyType

from dear.methods.declaration import Declaration, MethodSettings, SmallInt
from dear.reading.typed import NonNegativeFloat, PositiveFloat


@dataclass(frozen=True)
class TipAdapterSettings(MethodSettings):
    """Settings of Tip-Adapter; the defaults are those that its code starts from on ImageNet. Its authors then
    search alpha and beta for each data set, on ImageNet by the test images; this is not done here.

    Attributes:
        tuned: Train the keys of the cache (Tip-Adapter-F); if not, nothing is trained.
        alpha: Weight of the cache's scores, which are added to the scores of the text features.
        beta: How sharply a training image's weight falls with its distance.
        views: Random views of each training image, whose mean feature is its key.
        scale: Factor on the cosines with text features, a constant of the authors. none takes the backbone's.
    """

    training = MappingProxyType(
        {
            "optimizer": "adamw",
            "lr": 0.001,
            "epochs": 20,
            "batch": 256,
            "warmup_epochs": 0,
            "weight_decay": 0.01,
        }
    )

    tuned: bool = False
    alpha: NonNegativeFloat = 1.17
    beta: NonNegativeFloat = 1.0
    views: SmallInt = 10
    scale: PositiveFloat | None = 100.0

    @property
    def allows_steps(self) -> bool:
        return self.tuned


METHOD = Declaration(
    "tip-adapter",
    "2111.03930",
    "TipAdapter",
    TipAdapterSettings,
    cheap=True,
    open_vocabulary=False,
    cosine_scores=False,
    image="features",
    text="features",
)
