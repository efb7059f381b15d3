"""Zero-shot CLIP: the frozen model with hand-written prompts, without training."""

from types import MappingProxyType
from typing import Self

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dear.backbone.clip import Clip
from dear.methods.base import Method
from dear.methods.declaration import MethodSettings
from dear.roles.table import RoleTable


class ZeroShot(Method):
    """Classification by the cosine of CLIP's image feature and its text features."""

    name = "zero-shot"
    cheap = MappingProxyType({})

    @classmethod
    def build(
        cls, clip: Clip, generator: torch.Generator, roles: RoleTable | None, settings: MethodSettings | None
    ) -> Self:
        del generator, roles, settings
        return cls(clip)

    def loss(
        self,
        trunk: Float[Tensor, "batch token width"],
        labels: Int[Tensor, "batch"],
        frozen: Float[Tensor, "batch embed"] | None = None,
    ) -> dict[str, Tensor]:
        raise NotImplementedError("zero-shot CLIP is not trained")
