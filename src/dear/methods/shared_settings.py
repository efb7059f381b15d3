"""Settings and templates that methods share. Imports no torch."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from types import MappingProxyType

from dear.methods.declaration import Layer, MethodSettings, SmallInt, Tokens
from dear.reading.typed import NonNegativeFloat, PositiveFloat, Share


@dataclass(frozen=True)
class RepresentationSettings(MethodSettings):
    """Settings of a method with a learned representation space; the defaults are the published ones.

    Attributes:
        first: First layer that representation tokens enter, of 12.
        tokens: Number of tokens in the representation space.
        space: Width of the representation space.
        alpha: Weight of the class feature in the loss and in the fused score.
        reg_weight: Weight of the distance from the frozen features.
        scale: Factor on the cosines in the scores, a constant of the authors. none takes the backbone's.
        share: Scale layer numbers, which are given for 12 layers, to the depth of the tower [ours]. If not,
            use them as they are.
        token_std: Standard deviation of the tokens' initial values.
    """

    training = MappingProxyType({"batch": 4})

    first: Layer = 6
    tokens: Tokens = 5
    space: SmallInt = 512
    alpha: Share = 0.7
    reg_weight: NonNegativeFloat = 1.0
    scale: PositiveFloat | None = 100.0
    share: bool = True
    token_std: NonNegativeFloat = 0.02


def templates_or(template: str, of_dataset: Sequence[str]) -> tuple[str, ...]:
    """The template of a setting, if it is not empty; else those of the data set."""
    return (template,) if template else tuple(of_dataset)


@cache
def imagenet_templates() -> tuple[str, ...]:
    """The 60 templates of ImageNet that PromptSRC averages over; ``imagenet_templates.json`` names their
    source.
    """
    file = files(__package__).joinpath("imagenet_templates.json")
    return tuple(json.loads(file.read_text(encoding="utf-8"))["templates"])
