"""MMRL (Guo and Gu, CVPR 2025): a learned representation space with one aligner per layer."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from dear.backbone.clip import Clip
from dear.methods.mmrl import METHOD, MmrlSettings
from dear.methods.shared import Representation, aligned, clones, layers_of, linear_values, normal


class MMRL(Representation):
    """Multi-modal representation learning: each layer takes its own projection of the tokens in place of the
    previous layer's outputs at their positions.

    Source: arXiv 2503.08497; github.com/yunncheng/MMRL at 27d8821, trainers/mmrl.py and clip/model_mmrl.py.
    As in the code, scores are 100 times the cosines, whatever the backbone's temperature, and both halves
    of the regularization have one weight, set for each data set.
    """

    declaration = METHOD

    def __init__(self, clip: Clip, generator: torch.Generator, settings: MmrlSettings | None = None) -> None:
        super().__init__(clip, generator, settings or MmrlSettings(), beta=1.0)
        like, width, space = clip.image.projection, clip.image.width, self.settings.space
        image_layers, text_layers = layers_of(clip, (self.image_from, self.text_from))
        self.image_weight, self.image_bias = clones(
            image_layers, *linear_values(like, generator, space, width)
        )
        self.text_weight, self.text_bias = clones(
            text_layers, *linear_values(like, generator, space, clip.text.width)
        )
        self.projection = nn.Parameter(normal(like, generator, width, clip.image.embed_dim, std=width**-0.5))

    def image_tokens(self) -> Float[Tensor, "layer token width"]:
        return aligned(self.tokens, self.image_weight, self.image_bias)

    def text_tokens(self) -> Float[Tensor, "layer token width"]:
        return aligned(self.tokens, self.text_weight, self.text_bias)

    def token_projection(self) -> Float[Tensor, "width embed"]:
        return self.projection
