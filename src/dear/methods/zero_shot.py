"""Zero-shot CLIP: the frozen model with hand-written prompts, nothing trained."""

from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import normalize

from dear.backbone.clip import Clip
from dear.methods.contract import ImageFeatures, Method


class ZeroShot(Method):
    """CLIP's class token against CLIP's text features."""

    name = "zero-shot"

    def __init__(self, clip: Clip) -> None:
        super().__init__(clip)
        self.image_from, self.text_from = clip.image.depth + 1, clip.text.depth + 1

    def image_features(self, trunk: Float[Tensor, "batch token width"]) -> ImageFeatures:
        return normalize(self.clip.image.finish(trunk[:, 0]), dim=-1).unsqueeze(0)

    def text_features(self) -> Float[Tensor, "class embed"]:
        return self.frozen_text

    def loss(
        self, trunk: Float[Tensor, "batch token width"], labels: Int[Tensor, "batch"]
    ) -> dict[str, Tensor]:
        raise NotImplementedError("zero-shot CLIP is not trained")
