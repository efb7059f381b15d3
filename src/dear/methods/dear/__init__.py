"""Settings and declaration of DeAR."""

from dataclasses import dataclass
from typing import Annotated, Literal

from dear.methods.declaration import Declaration, Layer, MethodSettings, Tokens
from dear.reading.typed import NonNegativeFloat, PositiveFloat, Range, Share
from dear.roles.settings import CoreMask

FusionLoss = Literal["linear", "log"]


@dataclass(frozen=True)
class DearSettings(MethodSettings):
    """Settings of DeAR; the defaults are the paper's where it states one.

    Attributes:
        first: J, the first layer of the span, of 12. In other towers it is scaled to the depth.
        beta: Anchoring: the weight of the learned tokens in the input of each later layer [ours]; the
            previous layer's outputs have the rest.
        tokens: Tokens of each attribute: one, as we read "five learnable attribute tokens" (3.3.2) [ours];
            supplement Table 1 has "Attribute Token Length (K) 5".
        text_tokens: Learned text tokens. We read the paper's "token length of K = 5" as five of them [ours].
        token_std: Standard deviation of the tokens' initial values [ours].
        alpha_cls: Initial fusion weight of the class feature; the attribute features share the rest evenly
            [ours].
        learn_fusion: Train the fusion weights; if not, they keep their initial values.
        fusion_rate: Factor on the learning rate for the fusion weights [ours]; 1 is the paper's single rate,
            at which they hardly change in a hundred steps.
        lambda_reg: Weight of L_reg.
        lambda_fusion: Weight of L_fusion.
        fusion_loss: Form of L_fusion, "linear" or "log" [ours].
        copy_projection: Initialize the attribute projection as a copy of CLIP's; if not, randomly [ours].
        core_mask: What tokens of other attributes attend to in a core head: "exclusive" is their own
            attribute only (supplement B [ours]), and "eq9" is the image and the head's attribute (equation
            9).
        beta_last: Not in the paper: the anchoring of attribute tokens at the last layer. From the first layer
            after J, it changes linearly from beta to this value. null keeps beta at each layer.
        read_only: Not in the paper: image tokens attend to attribute tokens in no head, so that attribute
            tokens only read. The class feature is then the class feature of the frozen CLIP.
        roles_from_other_weights: Accept a role table computed from other weights.
    """

    first: Layer = 9
    beta: Share = 0.9
    tokens: Tokens = 1
    text_tokens: Annotated[int, Range(0, 256)] = 5
    token_std: NonNegativeFloat = 0.02
    alpha_cls: Annotated[float, Range(0, 1, above=True, below=True)] = 0.7
    learn_fusion: bool = True
    fusion_rate: PositiveFloat = 1.0
    lambda_reg: NonNegativeFloat = 1.0
    lambda_fusion: NonNegativeFloat = 0.7
    fusion_loss: FusionLoss = "linear"
    copy_projection: bool = True
    core_mask: CoreMask = "exclusive"
    beta_last: Share | None = None
    read_only: bool = False
    roles_from_other_weights: bool = False


METHOD = Declaration(
    "dear",
    "2603.01111",
    "Dear",
    DearSettings,
    roles="required",
    decoupled_on=("data",),
    image="heads",
    text="layers",
)
