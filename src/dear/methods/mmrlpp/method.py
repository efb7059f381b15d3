"""MMRL++ (Guo and Gu, IJCV 2026): MMRL with a shared aligner, tokens mixed with the previous layer's, and a
low-rank projection.
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from dear.backbone.clip import Clip
from dear.methods.mmrlpp import METHOD, MmrlPlusSettings
from dear.methods.shared import Representation, aligned, clones, layers_of, linear_values, uniform


class MMRLPlus(Representation):
    """Parameter-efficient MMRL: layers share one aligner, each with a low-rank residual and a bias; a layer
    mixes its own tokens (weight beta) with the previous layer's outputs (1 - beta); the second feature is
    projected by CLIP's projection with a low-rank update.

    Source: arXiv 2505.10088; github.com/yunncheng/MMRL at 27d8821, trainers/mmrlpp.py and
    clip/model_mmrlpp.py. The code fixes the same details as for MMRL. It also sets beta for each data set
    and, in transfer, for each target (trainers/config.py); the latter is not done here.
    """

    declaration = METHOD
    settings: MmrlPlusSettings

    def __init__(
        self, clip: Clip, generator: torch.Generator, settings: MmrlPlusSettings | None = None
    ) -> None:
        s = settings or MmrlPlusSettings()
        super().__init__(clip, generator, s, beta=s.beta)
        like, width, embed = clip.image.projection, clip.image.width, clip.image.embed_dim
        image_layers, text_layers = layers_of(clip, (self.image_from, self.text_from))

        def aligner(layers: int, outputs: int) -> list[nn.Parameter]:
            weight, bias = linear_values(like, generator, s.space, outputs)
            down = uniform(like, generator, layers, outputs, s.residual_rank)
            up = like.new_zeros(layers, s.residual_rank, s.space)
            return [*map(nn.Parameter, (weight, down, up)), *clones(layers, bias)]

        self.image_weight, self.image_a, self.image_b, self.image_bias = aligner(image_layers, width)
        self.text_weight, self.text_a, self.text_b, self.text_bias = aligner(text_layers, clip.text.width)
        self.projection_a = nn.Parameter(uniform(like, generator, width, s.projection_rank))
        self.projection_b = nn.Parameter(like.new_zeros(s.projection_rank, embed))

    def image_tokens(self) -> Float[Tensor, "layer token width"]:
        return aligned(self.tokens, self.image_weight + self.image_a @ self.image_b, self.image_bias)

    def text_tokens(self) -> Float[Tensor, "layer token width"]:
        return aligned(self.tokens, self.text_weight + self.text_a @ self.text_b, self.text_bias)

    def token_projection(self) -> Float[Tensor, "width embed"]:
        return self.clip.image.projection + self.projection_a @ self.projection_b
