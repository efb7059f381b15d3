"""DeAR (CVPR 2026, section 3.3): attribute tokens under a role mask, text tokens, and a learned fusion of
their evidence.
"""

import math
from dataclasses import asdict
from functools import partial
from typing import Any, ClassVar, Self

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, normalize

from dear.backbone.clip import Clip, span_start
from dear.backbone.towers import Injection
from dear.errors import RoleTableError
from dear.methods.base import ImageFeatures, Method
from dear.methods.initial import normal
from dear.methods.losses import cosine_distance, fusion_loss
from dear.methods.settings import DearSettings, MethodSettings
from dear.roles.mask import role_mask
from dear.roles.table import RoleTable


class Dear(Method):
    """Decomposed attention-role adaptation: all of CLIP stays frozen; tokens, one projection and the
    fusion weights are trained.
    """

    name = "dear"
    compares: ClassVar[bool] = True

    def __init__(
        self, clip: Clip, roles: RoleTable, generator: torch.Generator, settings: DearSettings | None = None
    ) -> None:
        super().__init__(clip)
        self.settings = s = settings or DearSettings()
        roles.check(clip.identity, allow_other=s.roles_from_other_weights)
        if not roles.attributes:
            raise RoleTableError(
                f"the role table {roles.source!r} names no core attribute: DeAR needs at least one."
            )
        self.roles = roles
        self.features = ("cls", *roles.attributes)
        self.image_from = span_start(clip.image.depth, s.first)
        self.text_from = span_start(clip.text.depth, s.first)

        like = clip.image.projection
        n = s.tokens * len(roles.attributes)
        draw = partial(normal, like, generator)
        self.attribute_tokens = nn.Parameter(draw(n, clip.image.width, std=s.token_std))
        self.text_tokens = nn.Parameter(draw(s.text_tokens, clip.text.width, std=s.token_std))
        start = like.detach().clone()
        self.projection = nn.Parameter(
            start if s.copy_projection else draw(*start.shape, std=len(start) ** -0.5)
        )
        self.fusion = nn.Parameter(
            initial_fusion(s.alpha_cls, len(roles.attributes)).to(like), requires_grad=s.learn_fusion
        )

        original = (clip.image_size // clip.image.patch_size) ** 2 + 1
        layers = range(self.image_from, clip.image.depth + 1)
        masks = torch.stack(
            [role_mask(roles, layer, clip.image.heads, original, s.tokens, s.core_mask) for layer in layers]
        )
        self.register_buffer("mask", masks.to(like), persistent=False)  # layer head query key
        self.register_buffer(
            "read", torch.tensor([0, *range(original, original + n)], device=like.device), persistent=False
        )

    @classmethod
    def build(
        cls, clip: Clip, generator: torch.Generator, roles: RoleTable | None, settings: MethodSettings | None
    ) -> Self:
        if roles is None:
            raise RoleTableError(
                f"DeAR needs a role table for {clip.identity} and none is known: give one with --roles FILE."
            )
        return cls(clip, roles, generator, settings)  # type: ignore[arg-type]  # checked by build_method

    def image_features(self, trunk: Float[Tensor, "batch token width"]) -> ImageFeatures:
        """Eq. 5 to 10: the class feature through CLIP's projection, each attribute's (mean of its tokens
        [ours]) through the trained one.
        """
        out = self.clip.image.span(
            trunk,
            self.image_from,
            bias=list(self.mask),  # type: ignore[arg-type]
            inject=Injection(self.attribute_tokens, self.settings.beta),
            read=self.read,  # type: ignore[arg-type]
        )
        attributes = out[:, 1:].unflatten(1, (-1, self.settings.tokens)).mean(dim=2).transpose(0, 1)
        f_cls = self.clip.image.finish(out[:, 0]).unsqueeze(0)
        f_attributes = self.clip.image.ln_final(attributes) @ self.projection
        return normalize(torch.cat([f_cls, f_attributes]), dim=-1)

    def text_features(self) -> Float[Tensor, "class embed"]:
        """Eq. 11: text tokens enter between the start token and the words."""
        return self._mean_of_templates(Injection(self.text_tokens, self.settings.beta, at=1))

    def logits(
        self, image: ImageFeatures, text: Float[Tensor, "class embed"], *, decoupled: bool = False
    ) -> Float[Tensor, "batch class"]:
        """Eq. 17 to 19: sum over features of alpha_k cos(f_k, f_t) / tau; decoupled inference takes the
        class feature alone.
        """
        if decoupled:
            return super().logits(image, text)
        fused = torch.einsum("k,kbe->be", self.fusion.softmax(dim=0), image)
        return self.clip.scale * fused @ text.T

    def loss(
        self,
        trunk: Float[Tensor, "batch token width"],
        labels: Int[Tensor, "batch"],
        frozen: Float[Tensor, "batch embed"] | None = None,
    ) -> dict[str, Tensor]:
        """Eq. 12 to 16."""
        frozen = self.frozen_image(trunk) if frozen is None else frozen
        image, text = self.image_features(trunk), self.text_features()
        ce = cross_entropy(self.logits(image, text), labels)
        reg = cosine_distance(image[0], frozen) + cosine_distance(text, self.frozen_text)
        fusion = fusion_loss(self.fusion.softmax(dim=0)[0], self.settings.fusion_loss)
        loss = ce + self.settings.lambda_reg * reg + self.settings.lambda_fusion * fusion
        return {"loss": loss, "ce": ce, "reg": reg, "fusion": fusion}

    def facts(self) -> dict[str, Any]:
        return {"settings": asdict(self.settings), "roles": self.roles.to_json()}

    def parameter_groups(self) -> list[dict[str, Any]]:
        """The fusion weights at a rate of their own, if they have one [ours]."""
        if self.settings.fusion_rate == 1 or not self.fusion.requires_grad:
            return super().parameter_groups()
        others = [p for p in self.trainable if p is not self.fusion]
        return [
            {"params": others, "rate": 1.0},
            # Decay would draw the scalars to zero, which is equal weights, the faster the higher the rate.
            {"params": [self.fusion], "rate": self.settings.fusion_rate, "weight_decay": 0.0},
        ]

    def fusion_weights(self) -> dict[str, float]:
        return dict(zip(self.features, self.fusion.softmax(dim=0).tolist(), strict=True))


def initial_fusion(alpha_cls: float, attributes: int) -> Float[Tensor, "feature"]:
    """Scalars whose softmax gives ``alpha_cls`` to the class feature and the rest evenly to the
    attributes.
    """
    return torch.tensor([math.log(alpha_cls), *[math.log((1 - alpha_cls) / attributes)] * attributes])
