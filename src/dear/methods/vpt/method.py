"""VPT (Jia et al., ECCV 2022) on CLIP: prompts in each layer of the image tower, texts as they are."""

from collections.abc import Sequence

import torch
from torch import nn

from dear.backbone.clip import Clip
from dear.methods.base import ImageFeatures, Method, Trunk
from dear.methods.shared import deep_prompts, image_injection
from dear.methods.shared_settings import templates_or
from dear.methods.vpt import METHOD, VptSettings


class VPT(Method):
    """Deep visual prompts: in each of the first layers of the image tower, new prompts after the patches
    replace the previous layer's outputs at their positions. The loss is the cross-entropy of scaled cosines
    with the frozen text features.

    Source: arXiv 2203.12119, on CLIP as MaPLe's authors run it:
    github.com/muzairkhattak/multimodal-prompt-learning at 69bce21, trainers/vpt.py and clip/model.py. As
    there: the template is "a photo of a {}." for all data sets, and prompts of layer 1 pass the tower's first
    LayerNorm. The first code (github.com/KMnP/vpt) has no text tower: it trains a linear head, puts prompts
    before the patches, and drops values of them.

    Differs from the code: nothing is cast to half precision.
    """

    declaration = METHOD
    settings: VptSettings

    def __init__(self, clip: Clip, generator: torch.Generator, settings: VptSettings | None = None) -> None:
        super().__init__(clip, generator, s := settings or VptSettings())
        self.image_from = 1
        prompts = deep_prompts(clip.image, s.depth, s.tokens, s.token_std, generator, share=s.share)
        self.image_prompts = nn.Parameter(prompts)

    @torch.no_grad()
    def set_classes(self, classnames: Sequence[str], templates: Sequence[str]) -> None:
        """Set the classes, with the template of the settings, if they have one."""
        super().set_classes(classnames, templates_or(self.settings.template, templates))

    def image_features(self, trunk: Trunk) -> ImageFeatures:
        change = image_injection(self.clip.image, self.image_prompts)
        return self.class_feature(trunk, change).unsqueeze(0)
