"""Settings and declaration of TCP."""

from dataclasses import dataclass
from types import MappingProxyType
from typing import Annotated

from dear.methods.declaration import Declaration, MethodSettings, SmallInt, Template, Tokens
from dear.reading.typed import NonNegativeFloat, Range


@dataclass(frozen=True)
class TcpSettings(MethodSettings):
    """Settings of TCP; the defaults are the published ones.

    Attributes:
        tokens: Number of context tokens, and of the class-aware tokens that replace them.
        layer: The layer of the text tower, of 12, at whose input the class-aware tokens enter.
        reduction: Width of the text feature, divided by the hidden width of the network that makes the
            class-aware tokens.
        text_weight: Weight of the distance of text features from the frozen ones.
        template: Template of the prompts; the data set's own if empty.
        frozen_template: Template of the frozen text features; the data set's own if empty.
        share: Scale layer numbers, which are given for 12 layers, to the depth of the tower [ours]. If not,
            use them as they are.
        token_std: Standard deviation of the context's initial values.
    """

    training = MappingProxyType({"optimizer": "adam", "lr": 0.002, "epochs": 50, "batch": 32})

    tokens: Tokens = 4
    layer: Annotated[int, Range(2, 12)] = 9
    reduction: SmallInt = 4
    text_weight: NonNegativeFloat = 8.0
    share: bool = True
    token_std: NonNegativeFloat = 0.02
    template: Template = ""
    frozen_template: Template = ""


METHOD = Declaration("tcp", "2311.18231", "TCP", TcpSettings, image="features", text="layers")
