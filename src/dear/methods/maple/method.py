"""MaPLe (Khattak et al., CVPR 2023): deep prompts in both towers, the image's computed from the text's."""

from collections.abc import Sequence

import torch
from torch import nn
from torch.nn.functional import normalize

from dear.backbone.clip import Clip
from dear.backbone.text import TextTrunk
from dear.methods.base import TextFeatures
from dear.methods.context import context_ids, initial_context
from dear.methods.maple import METHOD, MapleSettings
from dear.methods.shared import CoupledPrompts


class MaPLe(CoupledPrompts):
    """Multi-modal prompts: in each of the first layers of a tower, new prompts replace the previous layer's
    outputs at their positions; in later layers they evolve freely.

    Source: arXiv 2210.03117; github.com/muzairkhattak/multimodal-prompt-learning at 69bce21,
    trainers/maple.py and clip/model.py. As in the code, the two text prompts replace "a photo" in "a photo
    of a", so that "of a" stays, and the image prompts of layer 1 pass the tower's first LayerNorm.

    Differs from the code: nothing is cast to half precision. If the towers have different depths, the deeper
    one also uses prompts in its additional layers [ours].
    """

    declaration = METHOD
    settings: MapleSettings
    placed: TextTrunk

    def __init__(self, clip: Clip, generator: torch.Generator, settings: MapleSettings | None = None) -> None:
        super().__init__(clip, generator, s := settings or MapleSettings())
        self.image_from = self.text_from = 1
        self.context = nn.Parameter(initial_context(clip, s.words, s.tokens, s.token_std, generator))
        self.couple(s.depth, s.token_std, generator, share=s.share)

    @torch.no_grad()
    def set_classes(self, classnames: Sequence[str], templates: Sequence[str]) -> None:
        super().set_classes(classnames, templates)
        ids = context_ids(self.clip, classnames, self.settings.words, self.settings.tokens)
        self.placed = self.clip.text.trunk(ids, 1)

    def text_features(self) -> TextFeatures:
        change = self.text_injection(self.clip.first_word)
        return normalize(self.clip.text.features(self.placed, 1, change, self.text_chunk), dim=-1)
