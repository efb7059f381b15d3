"""MaPLe (Khattak et al., CVPR 2023): deep prompts in both towers, the image's computed from the text's."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import linear, normalize

from dear.backbone.clip import Clip, layer_share
from dear.backbone.towers import Injection, TextTrunk
from dear.methods import initial
from dear.methods.base import ImageFeatures, Method
from dear.methods.context import context_ids, initial_context
from dear.methods.maple.settings import MapleSettings


class MaPLe(Method):
    """Multi-modal prompts: each of the first layers of a tower replaces the prompts by new ones; in later
    layers they evolve.

    Source: arXiv 2210.03117; github.com/muzairkhattak/multimodal-prompt-learning at 69bce21,
    trainers/maple.py and clip/model.py. As in the code, the two text prompts replace "a photo" in "a photo
    of a", so that "of a" stays, and the image prompts of layer 1 pass the tower's first LayerNorm.

    Differs from the code: nothing is cast to half precision. If the towers have different depths, the deeper
    one also uses prompts in its additional layers [ours].
    """

    name = "maple"
    settings: MapleSettings
    placed: TextTrunk

    def __init__(self, clip: Clip, generator: torch.Generator, settings: MapleSettings | None = None) -> None:
        super().__init__(clip, s := settings or MapleSettings())
        self.image_from = self.text_from = 1
        towers = (clip.image.depth, clip.text.depth)
        layers = [layer_share(depth, s.depth) if s.share else min(s.depth, depth) for depth in towers]
        self.image_layers, self.text_layers = layers
        like, width, text_width = clip.image.projection, clip.image.width, clip.text.width
        self.context = nn.Parameter(initial_context(clip, s.words, s.tokens, s.token_std, generator))
        deep = (max(layers) - 1, s.tokens, text_width)
        self.prompts_deep = nn.Parameter(initial.normal(like, generator, *deep, std=s.token_std))
        weight, bias = initial.linear(like, generator, text_width, width)
        self.coupling_weight, self.coupling_bias = nn.Parameter(weight), nn.Parameter(bias)
        self.coupling_deep_weight, self.coupling_deep_bias = initial.clones(
            self.image_layers - 1, *initial.linear(like, generator, text_width, width)
        )

    @torch.no_grad()
    def set_classes(self, classnames: Sequence[str], templates: Sequence[str]) -> None:
        super().set_classes(classnames, templates)
        ids = context_ids(self.clip, classnames, self.settings.words, self.settings.tokens)
        self.placed = self.clip.text.trunk(ids, 1)

    def image_features(self, trunk: Float[Tensor, "batch token width"]) -> ImageFeatures:
        first = self.clip.image.ln_pre(linear(self.context, self.coupling_weight, self.coupling_bias))
        deep = torch.einsum(
            "ltw,lvw->ltv", self.prompts_deep[: self.image_layers - 1], self.coupling_deep_weight
        )
        tokens = torch.cat([first[None], deep + self.coupling_deep_bias.unsqueeze(1)])
        return self.class_feature(trunk, Injection(tokens, beta=1)).unsqueeze(0)

    def text_features(self) -> Float[Tensor, "class embed"]:
        first = self.context + self.clip.text.positional_embedding[1 : 1 + self.settings.tokens]
        tokens = torch.cat([first[None], self.prompts_deep[: self.text_layers - 1]])
        inject = Injection(tokens, beta=1, at=1, written=True)
        return normalize(self.clip.text.features(self.placed, 1, inject, self.text_chunk), dim=-1)
