"""Settings and declaration of CoOp."""

from dataclasses import dataclass
from types import MappingProxyType

from dear.methods.declaration import PROMPT, Declaration, MethodSettings, Tokens
from dear.reading.typed import NonNegativeFloat


@dataclass(frozen=True)
class CoOpSettings(MethodSettings):
    """Settings of CoOp; the defaults are those of its base-to-novel runs (from CoCoOp's paper and scripts).

    The few-shot runs of CoOp's own paper have 16 randomly initialized tokens.

    Attributes:
        tokens: Context tokens; 4 and 16 are published.
        words: Words whose embeddings are the initial context. If there are fewer words than tokens, the
            context is random.
        class_specific: Learn one context per class; the method then cannot score other classes.
        token_std: Standard deviation of random initial values.
    """

    training = MappingProxyType({"optimizer": "sgd", "lr": 0.002, "epochs": 200, "batch": 32})

    tokens: Tokens = 4
    words: str = PROMPT
    class_specific: bool = False
    token_std: NonNegativeFloat = 0.02


METHOD = Declaration("coop", "2109.01134", "CoOp", CoOpSettings, image="features", text="layers")
