"""Zero-shot CLIP: the frozen model with hand-written prompts, without training."""

from typing import Self

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import normalize

from dear.backbone.clip import Clip
from dear.methods.base import ImageFeatures, Method
from dear.methods.declaration import MethodSettings
from dear.roles.table import RoleTable


class ZeroShot(Method):
    """Classification by the cosine of CLIP's image feature and its text features."""

    name = "zero-shot"

    def __init__(self, clip: Clip) -> None:
        super().__init__(clip)
        self.image_from, self.text_from = clip.image.depth + 1, clip.text.depth + 1

    @classmethod
    def build(
        cls, clip: Clip, generator: torch.Generator, roles: RoleTable | None, settings: MethodSettings | None
    ) -> Self:
        del generator, roles, settings
        return cls(clip)

    def image_features(self, trunk: Float[Tensor, "batch token width"]) -> ImageFeatures:
        return normalize(self.clip.image.finish(trunk[:, 0]), dim=-1).unsqueeze(0)

    def text_features(self) -> Float[Tensor, "class embed"]:
        return self.frozen_text

    def loss(
        self,
        trunk: Float[Tensor, "batch token width"],
        labels: Int[Tensor, "batch"],
        frozen: Float[Tensor, "batch embed"] | None = None,
    ) -> dict[str, Tensor]:
        raise NotImplementedError("zero-shot CLIP is not trained")
