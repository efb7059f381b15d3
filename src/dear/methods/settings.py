"""The settings of each method. Light to import, so that commands can show them without loading torch."""

import math
from dataclasses import dataclass
from typing import Literal, get_args

from dear.errors import SettingsError

FusionLoss = Literal["linear", "log"]


@dataclass(frozen=True)
class DearSettings:
    """Settings of DeAR; the defaults are the paper's where it states one.

    Attributes:
        first: J, the first layer of the span in a tower of 12; other depths keep the span's share.
        beta: Anchoring: 1 re-injects the raw tokens at each layer, 0 lets them evolve.
        tokens: Tokens an attribute.
        text_tokens: Learnable tokens on the text side.
        token_std: Standard deviation of the tokens' initial values [ours].
        alpha_cls: Initial fusion weight of the class feature; the others share the rest evenly [ours].
        learn_fusion: Train the fusion weights; if not they stay where they start.
        lambda_reg: Weight of L_reg.
        lambda_fusion: Weight of L_fusion.
        fusion_loss: Form of L_fusion, "linear" or "log" [ours].
        copy_projection: Start the attribute projection as a copy of CLIP's, else at random [ours].
        roles_from_other_weights: Accept a role table that was computed from other weights.
    """

    first: int = 9
    beta: float = 0.9
    tokens: int = 1
    text_tokens: int = 5
    token_std: float = 0.02
    alpha_cls: float = 0.7
    learn_fusion: bool = True
    lambda_reg: float = 1.0
    lambda_fusion: float = 0.7
    fusion_loss: FusionLoss = "linear"
    copy_projection: bool = True
    roles_from_other_weights: bool = False

    def __post_init__(self) -> None:
        wrong = {
            "first": not 1 <= self.first <= 12 and "from 1 to 12",
            "beta": not 0 <= self.beta <= 1 and "from 0 to 1",
            "tokens": self.tokens < 1 and "at least 1",
            "text_tokens": self.text_tokens < 0 and "at least 0",
            "token_std": not 0 <= self.token_std < math.inf and "at least 0",
            "alpha_cls": not 0 < self.alpha_cls < 1 and "between 0 and 1, both excluded",
            "fusion_loss": self.fusion_loss not in get_args(FusionLoss)
            and f"one of {', '.join(get_args(FusionLoss))}",
        }
        for name, bounds in wrong.items():
            if bounds:
                raise SettingsError(f"{name} is {getattr(self, name)!r}: it must be {bounds}.")
