"""DeAR (CVPR 2026, section 3.3): attribute tokens under a role mask, text tokens, and a learned fusion of
their evidence.
"""

import copy
import math
from collections.abc import Sequence
from typing import Any, Self

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import normalize

from dear.backbone.attention import ComputedBiases
from dear.backbone.change import Injection
from dear.backbone.clip import Clip, span_start
from dear.errors import RoleTableError
from dear.limits import require_at_most
from dear.methods.base import (
    ImageFeatures,
    Labels,
    Logits,
    Losses,
    Method,
    Target,
    TextFeatures,
    TokenLayout,
    Trunk,
)
from dear.methods.dear import METHOD, DearSettings, FusionLoss
from dear.methods.optional import HasFusion, PlacesTokens
from dear.methods.shared import cosine_distance, normal
from dear.roles.mask import role_mask
from dear.roles.table import RoleTable


class Dear(Method, PlacesTokens, HasFusion):
    """Decomposed attention-role adaptation. CLIP is frozen; trained are the attribute tokens T, the text
    tokens P, the projection W of attribute features and the fusion scalars w.

    Only the span is changed: layers J to L of both towers. O are the original image tokens (class token and
    patches), A the attribute tokens, I_a those of attribute a (n each), R_a those of all other attributes.

    Anchored tokens (eq. 5, 6; beta on the raw tokens is [ours]: our copy lacks the formulas). The raw
    tokens enter at layer J; before each later layer, their current values are pulled back towards them. Text
    tokens P follow the same rule, after the start token of the text:

        input of layer J        [O ; T]
        input of layer l > J    [O_(l-1) ; beta T + (1 - beta) A_(l-1)]     of the outputs of layer l - 1

    Role mask (eq. 7 to 9). Head h of layer l attends by softmax(Q K^T / sqrt(d_h) + M) V. Rows of M are
    queries, columns are keys, and x is minus infinity:

        generalization, other specialized (8)     mixed
                 O   A                                O   A
            O  [ 0   x ]                         O  [ 0   0 ]
            A  [ x   0 ]                         A  [ 0   0 ]

        core of a, "eq9" (9)                      core of a, "exclusive" (9 and supplement B)
                 O  I_a R_a                           O  I_a R_a
            O  [ 0   0   x ]                     O  [ 0   0   x ]
           I_a [ 0   0   x ]                    I_a [ 0   0   x ]
           R_a [ 0   0   x ]                    R_a [ x   x   B ]    B: 0 within one attribute, else x

    Features (eq. 10, 11), all of unit norm. LN and W_0 are CLIP's last LayerNorm and projection, mean_n is
    the mean over the tokens of an attribute. This mean, LN in f_a, and W_0 as W's initial value are [ours]:

        f_cls = LN(class token) W_0      f_a = LN(mean_n(I_a)) W      f_t = CLIP's text feature, with P

    Loss (eq. 12 to 16), where f0 are the frozen CLIP's features; the sum of 1 - cos in L_reg is [ours]:

        L        = CE(logits, y) + lambda_reg L_reg + lambda_fusion L_fusion
        L_reg    = mean over images of (1 - cos(f_cls, f0_cls)) + mean over classes of (1 - cos(f_t, f0_t))
        L_fusion = 1 - alpha_cls, or -log alpha_cls        the paper's form is not known to us [ours]

    Fusion (eq. 17 to 19), over k = cls and the attributes; decoupled inference takes s_cls alone:

        s_k = cos(f_k, f_t) / tau        alpha = softmax(w)        logits = sum_k alpha_k s_k

    The paper scores the targets of cross-dataset transfer by s_cls (section 4.1). How it scores those of
    domain generalization it does not say: by s_cls too [ours].

    Beyond the paper, each an option that is off by default [ours]:

        beta_last     the attribute tokens' beta at layer J + i, for i = 1 to m = L - J, becomes
                      beta + (beta_last - beta) (i - 1) / (m - 1), or beta_last if m = 1; P keeps beta
        read_only     M is x for (O, A) in all heads: f_cls = f0_cls, and only f_a and f_t adapt
    """

    declaration = METHOD
    target = "trunk"
    given_alpha: Tensor | None = None  # feature: weights in place of the learned ones
    settings: DearSettings
    mask: Tensor  # layer head query key: M of each layer of the span
    read: Tensor  # the positions of the class token and the attribute tokens

    def __init__(
        self,
        clip: Clip,
        generator: torch.Generator,
        settings: DearSettings | None = None,
        *,
        roles: RoleTable,
    ) -> None:
        super().__init__(clip, generator, s := settings or DearSettings())
        option = "--dear.roles-from-other-weights"
        roles.check(clip.identity, allow_other=s.roles_from_other_weights, option=option)
        if not roles.attributes:
            raise RoleTableError(
                f"the role table {roles.source!r} has no core attribute: DeAR needs at least one."
            )
        self.roles = roles
        self.features = ("cls", *roles.attributes)
        self.layout = TokenLayout(tokens_by_name=dict.fromkeys(roles.attributes, s.tokens))
        self.image_from = span_start(clip.image.depth, s.first)
        self.text_from = span_start(clip.text.depth, s.first)
        owned = {head.attribute for head in roles.heads if head.layer >= self.image_from}
        self.without_heads = tuple(name for name in roles.attributes if name not in owned)
        later = clip.image.depth - self.image_from  # layers at which attribute tokens are anchored
        self.beta = s.beta if s.beta_last is None else ramp(s.beta, s.beta_last, later)
        self._draw_parameters(generator)
        self._make_mask()

    def _draw_parameters(self, generator: torch.Generator) -> None:
        """Initialize T, P, W and w; W as a copy of CLIP's projection, w by ``alpha_cls`` [ours]. The options
        beyond the paper draw nothing, so these values do not depend on them.
        """
        s, clip, attributes = self.settings, self.clip, len(self.roles.attributes)
        like = clip.image.projection  # width embed
        tokens = normal(like, generator, s.tokens * attributes, clip.image.width, std=s.token_std)
        self.attribute_tokens = nn.Parameter(tokens)  # token width
        tokens = normal(like, generator, s.text_tokens, clip.text.width, std=s.token_std)
        self.text_tokens = nn.Parameter(tokens)  # token text_width
        projection = like.detach().clone()
        if not s.copy_projection:
            projection = normal(like, generator, *like.shape, std=len(like) ** -0.5)
        self.projection = nn.Parameter(projection)  # width embed
        scalars = initial_fusion(s.alpha_cls, attributes).to(like)
        self.fusion = nn.Parameter(scalars, requires_grad=s.learn_fusion)  # feature

    def _make_mask(self) -> None:
        """Compute M of each layer of the span, and the positions at which its last layer is read."""
        s, tower, like = self.settings, self.clip.image, self.clip.image.projection
        original = self.original = tower.side**2 + 1
        layers = range(self.image_from, tower.depth + 1)
        values = len(layers) * tower.heads * (original + len(self.attribute_tokens)) ** 2
        require_at_most("mask_values", values, f"{s.folder()} on this model")
        masks = [
            role_mask(self.roles, layer, tower.heads, original, s.tokens, s.core_mask) for layer in layers
        ]
        self.biases = ComputedBiases()
        self.register_buffer("mask", self._without_writing(torch.stack(masks)).to(like), persistent=False)
        read = torch.tensor([0, *range(original, original + len(self.attribute_tokens))])
        self.register_buffer("read", read.to(like.device), persistent=False)

    def _without_writing(
        self, mask: Float[Tensor, "layer head query key"]
    ) -> Float[Tensor, "layer head query key"]:
        """The mask; with ``read_only``, edges from original to attribute tokens are blocked too."""
        if not self.settings.read_only:
            return mask
        is_attribute = torch.arange(mask.shape[-1], device=mask.device) >= self.original
        return mask.masked_fill(is_attribute & ~is_attribute[:, None], float("-inf"))

    def image_features(self, trunk: Trunk) -> ImageFeatures:
        """f_cls and f_a, from the original tokens as they enter layer J."""
        tower, change = self.clip.image, Injection(self.attribute_tokens, self.beta)
        out = tower.span(trunk, self.image_from, change, bias=self.biases([*self.mask]), read=self.read)
        f_cls = tower.finish(out[:, 0])  # batch embed
        of_attribute = out[:, 1:].unflatten(1, (-1, self.settings.tokens))  # batch attribute token width
        mean = of_attribute.mean(dim=2).transpose(0, 1)  # attribute batch width
        f_attributes = tower.finish(mean, self.projection)  # attribute batch embed
        return normalize(torch.cat([f_cls.unsqueeze(0), f_attributes]), dim=-1)  # feature batch embed

    def text_features(self) -> TextFeatures:
        """f_t (the normalized mean over templates), with P between the start token and the words."""
        return self.mean_over_templates(
            Injection(self.text_tokens, self.settings.beta, at=self.clip.first_word)
        )

    def fusion_weights(self) -> dict[str, float]:
        return dict(zip(self.features, self.alpha.tolist(), strict=True))

    @property
    def alpha(self) -> Float[Tensor, "feature"]:
        """The weight of each feature; they sum to one."""
        return self.fusion.softmax(dim=0) if self.given_alpha is None else self.given_alpha

    def with_fusion(self, weights: Sequence[float]) -> Self:
        steered = copy.copy(self)
        steered.given_alpha = self.fusion.new_tensor(weights)
        return steered

    def logits(self, image: ImageFeatures, text: TextFeatures, *, decoupled: bool = False) -> Logits:
        """Sum of alpha_k s_k: because all s_k share f_t, the features are summed first."""
        if decoupled:
            return self.clip.scale * image[0] @ text.T
        fused = torch.einsum("k,kbe->be", self.alpha, image)  # batch embed
        return self.clip.scale * fused @ text.T  # scale is 1 / tau

    def loss(self, trunk: Trunk, labels: Labels, frozen: Target = None) -> Losses:
        """L as "loss", and its three terms without their weights."""
        frozen = self.frozen_image(trunk) if frozen is None else frozen
        image, text = self.image_features(trunk), self.text_features()
        ce = self.label_loss(self.training_logits(image, text), labels)
        reg = cosine_distance(image[0], frozen) + cosine_distance(text, self.frozen_text)
        fusion = fusion_loss(self.alpha[0], self.settings.fusion_loss)
        loss = ce + self.settings.lambda_reg * reg + self.settings.lambda_fusion * fusion
        return {"loss": loss, "ce": ce, "reg": reg, "fusion": fusion}

    def parameter_groups(self) -> list[dict[str, Any]]:
        """The fusion scalars w with their own learning rate, if they have one [ours]."""
        if self.settings.fusion_rate == 1 or not self.fusion.requires_grad:
            return [{"params": self.trainable, "rate": 1.0}]
        return [
            {"params": [p for p in self.trainable if p is not self.fusion], "rate": 1.0},
            # Weight decay would pull them to zero, which is equal weights, the faster the higher the rate.
            {"params": [self.fusion], "rate": self.settings.fusion_rate, "weight_decay": 0.0},
        ]

    def fingerprint_fields(self) -> dict[str, Any]:
        return super().fingerprint_fields() | {"roles": self.roles.to_json()}


def ramp(start: float, end: float, steps: int) -> tuple[float, ...]:
    """``steps`` values in equal steps from ``start`` to ``end``; a single one is ``end``."""
    return tuple(start + (end - start) * (i / (steps - 1) if steps > 1 else 1) for i in range(steps))


def initial_fusion(alpha_cls: float, attributes: int) -> Float[Tensor, "feature"]:
    """Scalars whose softmax gives ``alpha_cls`` to the class feature and the rest evenly to the
    attributes.
    """
    return torch.tensor([math.log(alpha_cls), *[math.log((1 - alpha_cls) / attributes)] * attributes])


def fusion_loss(alpha_cls: Float[Tensor, ""], form: FusionLoss) -> Float[Tensor, ""]:
    """L_fusion, which rewards weight on the class feature."""
    return 1 - alpha_cls if form == "linear" else -alpha_cls.log()
