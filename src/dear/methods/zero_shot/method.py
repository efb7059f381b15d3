"""Zero-shot CLIP: the frozen model with hand-written prompts, without training."""

from typing import Self

import torch

from dear.backbone.clip import Clip
from dear.methods.base import Labels, Losses, Method, Target, Trunk
from dear.methods.declaration import MethodSettings
from dear.roles.table import RoleTable


class ZeroShot(Method):
    """Classification by the cosine of CLIP's image feature and its text features."""

    name = "zero-shot"
    cheap = True

    @classmethod
    def build(
        cls, clip: Clip, generator: torch.Generator, roles: RoleTable | None, settings: MethodSettings | None
    ) -> Self:
        del generator, roles, settings
        return cls(clip)

    def loss(self, trunk: Trunk, labels: Labels, frozen: Target = None) -> Losses:
        raise NotImplementedError("zero-shot CLIP is not trained")
