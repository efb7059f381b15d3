"""Settings and declaration of ProVP-Ref."""

from dataclasses import dataclass
from types import MappingProxyType

from dear.methods.declaration import Declaration, MethodSettings, SmallInt, Template, Tokens
from dear.reading.typed import NonNegativeFloat, Share


@dataclass(frozen=True)
class ProVpSettings(MethodSettings):
    """Settings of ProVP-Ref; the defaults are those of its base-to-novel runs.

    Attributes:
        tokens: Prompt tokens of each layer of the image tower; 16 and 50 are published.
        beta: Weight of a layer's own prompts; the previous layer's outputs have the rest. With 1
            they have no weight.
        ref_weight: Weight of the re-formation loss; 0 is ProVP without Ref.
        template: Template of the prompts; the data set's own if empty.
        start_patch: Side of a patch, from which the bound of initial values is computed: 14 in the code,
            though ViT-B/16's is 16; none takes the backbone's own.
    """

    training = MappingProxyType(
        {"optimizer": "sgd", "lr": 0.1, "epochs": 100, "batch": 32, "weight_decay": 1e-3}
    )

    tokens: Tokens = 16
    beta: Share = 0.99
    ref_weight: NonNegativeFloat = 1.0
    template: Template = ""
    start_patch: SmallInt | None = 14


METHOD = Declaration("provp", "2304.08386", "ProVP", ProVpSettings, image="layers", text="features")
