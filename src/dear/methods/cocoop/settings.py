"""Settings of CoCoOp, and what it declares."""

from dataclasses import dataclass
from types import MappingProxyType

from dear.methods.declaration import AT_LEAST_0, COUNT, PROMPT, Declaration, MethodSettings


@dataclass(frozen=True)
class CoCoOpSettings(MethodSettings):
    """Settings of CoCoOp; the defaults are the published ones.

    Attributes:
        tokens: Context tokens.
        words: Words whose embeddings the context starts from; at random if they are fewer than the tokens.
        reduction: Width of the image feature over the hidden width of the meta-net.
        chunk: Prompts (an image with a class) encoded at once: bounds the memory, not the result.
        token_std: Standard deviation of a random start.
    """

    training = MappingProxyType({"optimizer": "sgd", "lr": 0.002, "epochs": 10, "batch": 1})
    bounds = MappingProxyType({"tokens": COUNT, "reduction": COUNT, "chunk": COUNT, "token_std": AT_LEAST_0})

    tokens: int = 4
    words: str = PROMPT
    reduction: int = 16
    chunk: int = 256
    token_std: float = 0.02


METHOD = Declaration("cocoop", "2203.05557", "CoCoOp", CoCoOpSettings)
