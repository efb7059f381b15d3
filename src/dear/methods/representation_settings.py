"""Settings shared by MMRL and MMRL++."""

import json
import math
from dataclasses import dataclass, replace
from importlib.resources import files
from types import MappingProxyType
from typing import Literal, Self

from dear.methods.declaration import AT_LEAST_0, COUNT, LAYER, SHARE, MethodSettings


@dataclass(frozen=True)
class RepresentationSettings(MethodSettings):
    """Settings of a method with a learned representation space; the defaults are the published ones.

    Attributes:
        first: First layer that representation tokens enter, of 12.
        tokens: Number of tokens in the representation space.
        space: Width of the representation space.
        alpha: Weight of the class feature in the loss and in the fused score.
        regularisation: "per-dataset" uses the authors' settings for each data set, and the values given here
            for other data sets; "uniform" uses the values given here for all.
        reg_weight: Weight of the distance from the frozen features.
        scale: Factor on cosines in the scores: the authors' constant; none uses the backbone's own.
        share: Scale the span with the depth of the tower [ours]; else use layer numbers unchanged.
        token_std: Standard deviation of the tokens' initial values.
    """

    training = MappingProxyType({"batch": 4})
    bounds = MappingProxyType(
        {"first": LAYER, "tokens": COUNT, "space": COUNT, "alpha": SHARE, "token_std": AT_LEAST_0}
        | {"reg_weight": AT_LEAST_0}
        | {"scale": ("above 0, or none", lambda value: value is None or 0 < value < math.inf)}
    )

    first: int = 6
    tokens: int = 5
    space: int = 512
    alpha: float = 0.7
    regularisation: Literal["per-dataset", "uniform"] = "per-dataset"
    reg_weight: float = 1.0
    scale: float | None = 100.0
    share: bool = True
    token_std: float = 0.02

    def for_data(self, dataset: str) -> Self:
        """The settings with the data set's values in ``per_dataset.json`` of the method's folder."""
        if self.regularisation == "uniform":
            return self
        file = files(f"{__package__}.{self.folder()}").joinpath("per_dataset.json")
        published = json.loads(file.read_text(encoding="utf-8"))["settings"]
        return replace(self, **published.get(dataset, {}))
