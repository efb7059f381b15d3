"""Settings and declaration of MaPLe."""

from dataclasses import dataclass
from types import MappingProxyType

from dear.methods.declaration import PROMPT, Declaration, Layer, MethodSettings, Tokens
from dear.reading.typed import NonNegativeFloat


@dataclass(frozen=True)
class MapleSettings(MethodSettings):
    """Settings of MaPLe; the defaults are the published ones.

    Attributes:
        depth: The number of first layers of both towers, of 12, that have their own prompts.
        tokens: Prompt tokens in each tower.
        words: Words whose embeddings are the initial first text prompt. If there are fewer words than tokens,
            the prompt is random.
        share: Scale layer numbers, which are given for 12 layers, to the depth of the tower [ours]. If not,
            use them as they are.
        token_std: Standard deviation of random initial values.
    """

    training = MappingProxyType({"optimizer": "sgd", "lr": 0.0035, "epochs": 5, "batch": 4})

    depth: Layer = 9
    tokens: Tokens = 2
    words: str = PROMPT
    share: bool = True
    token_std: NonNegativeFloat = 0.02


METHOD = Declaration("maple", "2210.03117", "MaPLe", MapleSettings, image="layers", text="layers")
