"""Settings and declaration of MMRL++."""

from dataclasses import dataclass

from dear.methods.declaration import Declaration, SmallInt
from dear.methods.shared_settings import RepresentationSettings
from dear.reading.typed import Share


@dataclass(frozen=True)
class MmrlPlusSettings(RepresentationSettings):
    """Settings of MMRL++; the defaults are the published ones.

    Attributes:
        beta: Weight of a layer's own tokens; the previous layer's outputs have the rest.
        residual_rank: Rank of each layer's residual to the shared aligner.
        projection_rank: Rank of the update to CLIP's projection for the tokens.
    """

    beta: Share = 0.9
    residual_rank: SmallInt = 4
    projection_rank: SmallInt = 64


METHOD = Declaration(
    "mmrl++",
    "2505.10088",
    "MMRLPlus",
    MmrlPlusSettings,
    decoupled_on=("classes", "data"),
    image="layers",
    text="layers",
)
