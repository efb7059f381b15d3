"""The common part of MMRL and MMRL++: tokens of a learned space enter the later layers of both towers and
give a second image feature.
"""

from abc import abstractmethod
from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, normalize

from dear.backbone.clip import Clip
from dear.backbone.injection import Injection
from dear.methods.base import ImageFeatures, Method, TokenLayout
from dear.methods.initial import normal
from dear.methods.losses import cosine_distance
from dear.methods.representation_settings import RepresentationSettings


class Representation(Method):
    """Base class of both, which differ in how tokens enter a layer and in the second feature's projection.

    Scores are a fixed mixture of both features' scores; those of novel classes use the class feature alone.
    """

    features = ("cls", "rep")
    layout = TokenLayout(before_patches=True)
    novel_decoupled = True
    uses_frozen_image = True
    settings: RepresentationSettings

    def __init__(
        self, clip: Clip, generator: torch.Generator, settings: RepresentationSettings, beta: float
    ) -> None:
        super().__init__(clip, settings)
        self.beta = beta
        self.image_from, self.text_from = self.spans_begin(settings.first, settings.share)
        self.tokens = nn.Parameter(
            normal(clip.image.projection, generator, settings.tokens, settings.space, std=settings.token_std)
        )
        self.register_buffer(
            "read", torch.arange(1 + settings.tokens, device=self.tokens.device), persistent=False
        )

    @abstractmethod
    def image_tokens(self) -> Float[Tensor, "layer token width"]:
        """The tokens for each layer of the image span."""

    @abstractmethod
    def text_tokens(self) -> Float[Tensor, "layer token width"]:
        """The tokens for each layer of the text span."""

    @abstractmethod
    def token_projection(self) -> Float[Tensor, "width embed"]:
        """The projection of the second feature."""

    def image_features(self, trunk: Float[Tensor, "batch token width"]) -> ImageFeatures:
        """The class feature, and the projected mean of the tokens after the final LayerNorm."""
        inject = Injection(self.image_tokens(), self.beta, at=1)
        out = self.clip.image.span(trunk, self.image_from, inject=inject, read=self.read)  # type: ignore[arg-type]
        tower = self.clip.image
        f_cls = tower.finish(out[:, 0])
        f_rep = tower.projected(tower.ln_final(out[:, 1:]).mean(dim=1), self.token_projection())
        return normalize(torch.stack([f_cls, f_rep.to(f_cls.dtype)]), dim=-1)

    def text_features(self) -> Float[Tensor, "class embed"]:
        return self.mean_over_templates(Injection(self.text_tokens(), self.beta, at=self.clip.first_word))

    @property
    def scale(self) -> Float[Tensor, ""] | float:
        """The factor on cosines in the scores."""
        return self.clip.scale if self.settings.scale is None else self.settings.scale

    def logits(
        self, image: ImageFeatures, text: Float[Tensor, "class embed"], *, decoupled: bool = False
    ) -> Float[Tensor, "batch class"]:
        """The mixture of both features' scores, or those of the class feature alone."""
        f_cls, f_rep = (self.scale * feature @ text.T for feature in image)
        alpha = self.settings.alpha
        scores: Tensor = f_cls if decoupled else alpha * f_cls + (1 - alpha) * f_rep
        return scores

    def loss(
        self,
        trunk: Float[Tensor, "batch token width"],
        labels: Int[Tensor, "batch"],
        frozen: Float[Tensor, "batch embed"] | None = None,
    ) -> dict[str, Tensor]:
        """The mixture of both features' cross-entropies plus the distance from the frozen features."""
        frozen = self.frozen_image(trunk) if frozen is None else frozen
        image, text, s = self.image_features(trunk), self.text_features(), self.settings
        of_cls, of_rep = (cross_entropy(self.scale * feature @ text.T, labels) for feature in image)
        ce = s.alpha * of_cls + (1 - s.alpha) * of_rep
        reg = cosine_distance(image[0], frozen) + cosine_distance(text, self.frozen_text)
        return {"loss": ce + s.reg_weight * reg, "ce": ce, "reg": reg}


def layers_of(clip: Clip, spans: Sequence[int]) -> tuple[int, int]:
    """The number of layers in the image and the text span."""
    return clip.image.depth - spans[0] + 1, clip.text.depth - spans[1] + 1


def aligned(
    tokens: Float[Tensor, "token space"],
    weight: Float[Tensor, "layer width space"],
    bias: Float[Tensor, "layer width"],
) -> Float[Tensor, "layer token width"]:
    """Each layer's linear projection of the tokens."""
    return torch.einsum("ts,lws->ltw", tokens, weight) + bias.unsqueeze(1)
