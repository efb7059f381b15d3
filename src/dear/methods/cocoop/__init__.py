"""Settings and declaration of CoCoOp."""

from dataclasses import dataclass
from types import MappingProxyType

from dear.methods.declaration import PROMPT, Declaration, MethodSettings, SmallInt, Tokens
from dear.reading.typed import NonNegativeFloat


@dataclass(frozen=True)
class CoCoOpSettings(MethodSettings):
    """Settings of CoCoOp; the defaults are the published ones.

    Attributes:
        tokens: Context tokens.
        words: Words whose embeddings are the initial context. If there are fewer words than tokens, the
            context is random.
        reduction: Ratio of the width of the image feature to the hidden width of the meta-net.
        token_std: Standard deviation of random initial values.
    """

    training = MappingProxyType({"optimizer": "sgd", "lr": 0.002, "epochs": 10, "batch": 1})

    tokens: Tokens = 4
    words: str = PROMPT
    reduction: SmallInt = 16
    token_std: NonNegativeFloat = 0.02


METHOD = Declaration(
    "cocoop",
    "2203.05557",
    "CoCoOp",
    CoCoOpSettings,
    text_depends_on_image=True,
    image="features",
    text="layers",
)
