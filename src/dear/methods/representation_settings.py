"""The settings that MMRL and MMRL++ share."""

import json
import math
from dataclasses import dataclass, replace
from importlib.resources import files
from types import MappingProxyType
from typing import Literal, Self

from dear.methods.declaration import AT_LEAST_0, COUNT, LAYER, SHARE, MethodSettings


@dataclass(frozen=True)
class RepresentationSettings(MethodSettings):
    """Settings of a method on a learned representation space; the defaults are the published ones.

    Attributes:
        first: The first layer that representation tokens enter, of 12.
        tokens: Tokens of the representation space.
        space: Width of the representation space.
        alpha: Weight of the class feature in the loss and in the fused score.
        regularisation: "per-dataset" takes what the authors set for each data set, and the values given here
            on data sets without; "uniform" takes the values given here on all.
        reg_weight: Weight of the distance from the frozen features.
        scale: Factor of cosines in scores: the authors' constant; none takes the backbone's own.
        share: Keep the share of 12 in towers of other depths [ours]; if not, count layers as they are.
        token_std: Standard deviation of the tokens' start.
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
        """With what ``per_dataset.json`` of the method's folder has for the data set."""
        if self.regularisation == "uniform":
            return self
        file = files(f"{__package__}.{self.folder()}").joinpath("per_dataset.json")
        published = json.loads(file.read_text(encoding="utf-8"))["settings"]
        return replace(self, **published.get(dataset, {}))
