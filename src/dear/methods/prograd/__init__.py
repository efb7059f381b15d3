"""Settings and declaration of ProGrad."""

from dataclasses import dataclass
from types import MappingProxyType

from dear.methods.declaration import Declaration, MethodSettings, Template, Tokens
from dear.reading.typed import NonNegativeFloat, PositiveFloat


@dataclass(frozen=True)
class ProGradSettings(MethodSettings):
    """Settings of ProGrad; the defaults are those of its base-to-novel runs.

    Attributes:
        tokens: Context tokens. The last ones start as the words of the template, the others as zeros.
        strength: How much is removed of the part of the gradient that goes against the frozen CLIP's. 1
            removes all of it.
        temperature: What the learned scores and the frozen CLIP's scores are divided by before the divergence
            between the two.
        template: Template of the prompts; the data set's own if empty.
        frozen_template: Template of the frozen text features; the data set's own if empty.
    """

    training = MappingProxyType({"optimizer": "sgd", "lr": 0.002, "epochs": 100, "batch": 32})

    tokens: Tokens = 16
    strength: NonNegativeFloat = 1.0
    temperature: PositiveFloat = 1.0
    template: Template = ""
    frozen_template: Template = ""


METHOD = Declaration("prograd", "2205.14865", "ProGrad", ProGradSettings, image="features", text="layers")
