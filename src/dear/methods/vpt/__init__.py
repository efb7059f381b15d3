"""Settings and declaration of VPT."""

from dataclasses import dataclass
from types import MappingProxyType

from dear.methods.declaration import Declaration, Layer, MethodSettings, Template, Tokens
from dear.reading.typed import NonNegativeFloat


@dataclass(frozen=True)
class VptSettings(MethodSettings):
    """Settings of VPT on CLIP; the defaults are those that MaPLe's authors run it with in base-to-novel.

    Attributes:
        depth: The number of first layers of the image tower, of 12, that have their own prompts.
        tokens: Prompt tokens of each layer that has prompts.
        template: Template of the prompts; the data set's own if empty.
        share: Scale layer numbers, which are given for 12 layers, to the depth of the tower [ours]. If not,
            use them as they are.
        token_std: Standard deviation of initial values.
    """

    training = MappingProxyType({"optimizer": "sgd", "lr": 0.0025, "epochs": 5, "batch": 4})

    depth: Layer = 12
    tokens: Tokens = 8
    template: Template = ""
    share: bool = True
    token_std: NonNegativeFloat = 0.02


METHOD = Declaration("vpt", "2203.12119", "VPT", VptSettings, image="layers", text="features")
