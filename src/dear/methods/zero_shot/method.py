"""Zero-shot CLIP: the frozen model with hand-written prompts, without training."""

import torch

from dear.backbone.clip import Clip
from dear.methods.base import Labels, Losses, Method, Target, Trunk
from dear.methods.declaration import MethodSettings
from dear.methods.zero_shot import METHOD


class ZeroShot(Method):
    """Classification by the cosine of CLIP's image feature and its text features."""

    declaration = METHOD

    def __init__(
        self,
        clip: Clip,
        generator: torch.Generator | None = None,
        settings: MethodSettings | None = None,
    ) -> None:
        super().__init__(clip, settings)
        del generator  # nothing is drawn

    def loss(self, trunk: Trunk, labels: Labels, frozen: Target = None) -> Losses:
        raise NotImplementedError("zero-shot CLIP is not trained")
