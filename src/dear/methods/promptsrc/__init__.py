"""Settings and declaration of PromptSRC."""

from dataclasses import dataclass
from types import MappingProxyType
from typing import Annotated, Literal

from dear.methods.declaration import PROMPT, Declaration, Layer, MethodSettings, Tokens
from dear.reading.typed import LARGEST, NonNegativeFloat, PositiveFloat, Range


@dataclass(frozen=True)
class PromptSrcSettings(MethodSettings):
    """Settings of PromptSRC; the defaults are the published ones.

    Attributes:
        image_depth: The number of first layers of the image tower, of 12, that have their own prompts.
        text_depth: The number of first layers of the text tower, of 12, that have their own prompts.
        image_tokens: Prompt tokens of the image tower.
        text_tokens: Prompt tokens of the text tower.
        words: Words whose embeddings are the initial first text prompt. If there are fewer words than tokens,
            the prompt is random.
        text_weight: Weight of the distance of text features from the frozen ones.
        image_weight: Weight of the distance of image features from the frozen ones.
        logit_weight: Weight of the divergence of scores from the frozen ones.
        average_mean: Mean, in epochs, of the Gaussian weights for averaging the prompts.
        average_std: Standard deviation of the Gaussian weights for averaging the prompts, in epochs.
        teacher: Templates of the frozen text features: 60 of CLIP's for ImageNet, or the templates of the
            data set.
        share: Scale layer numbers, which are given for 12 layers, to the depth of the tower [ours]. If not,
            use them as they are.
        token_std: Standard deviation of random initial values.
    """

    training = MappingProxyType({"optimizer": "sgd", "lr": 0.0025, "epochs": 20, "batch": 4})

    image_depth: Layer = 9
    text_depth: Layer = 9
    image_tokens: Tokens = 4
    text_tokens: Tokens = 4
    words: str = PROMPT
    text_weight: NonNegativeFloat = 25.0
    image_weight: NonNegativeFloat = 10.0
    logit_weight: NonNegativeFloat = 1.0
    average_mean: Annotated[float, Range(-LARGEST, LARGEST)] = 15.0
    average_std: PositiveFloat = 1.0
    teacher: Literal["imagenet", "dataset"] = "imagenet"
    share: bool = True
    token_std: NonNegativeFloat = 0.02


METHOD = Declaration("promptsrc", "2307.06948", "PromptSRC", PromptSrcSettings, image="layers", text="layers")
