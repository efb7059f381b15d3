"""Settings and declaration of MMRL++."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from types import MappingProxyType
from typing import Any, Literal

from dear.methods.declaration import COUNT, SHARE, Declaration
from dear.methods.shared_settings import RepresentationSettings


@dataclass(frozen=True)
class MmrlPlusSettings(RepresentationSettings):
    """Settings of MMRL++; the defaults are the published ones.

    Attributes:
        beta: Weight of a layer's own tokens; the previous layer's outputs have the rest.
        beta_per_target: "published" scores each target of cross-dataset transfer and domain generalization
            with the beta that the authors chose for it, after the same training: results are then tuned on
            targets, and marked so. "off" uses one beta for all, as targets without a published beta do.
        residual_rank: Rank of each layer's residual to the shared aligner.
        projection_rank: Rank of the update to CLIP's projection for the tokens.
    """

    bounds = MappingProxyType(
        RepresentationSettings.bounds | {"beta": SHARE, "residual_rank": COUNT, "projection_rank": COUNT}
    )

    beta: float = 0.9
    beta_per_target: Literal["off", "published"] = "off"
    residual_rank: int = 4
    projection_rank: int = 64

    def tuned_for(self, target: str) -> Mapping[str, Any]:
        """The target's beta in ``per_target.json``, if ``beta_per_target`` asks for it."""
        if self.beta_per_target == "off":
            return {}
        file = files(__package__).joinpath("per_target.json")
        published = json.loads(file.read_text(encoding="utf-8"))["beta"]
        return {"beta": published[target]} if target in published else {}


METHOD = Declaration("mmrl++", "2505.10088", "MMRLPlus", MmrlPlusSettings, image="layers", text="layers")
