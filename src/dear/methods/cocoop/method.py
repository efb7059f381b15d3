"""CoCoOp (Zhou et al., CVPR 2022): CoOp's context, shifted for each image by a small network."""

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import normalize
from torch.utils.checkpoint import checkpoint

from dear.backbone.clip import Clip
from dear.methods.base import ImageFeatures, Labels, Logits, Losses, Method, Target, TextFeatures, Trunk
from dear.methods.cocoop import METHOD, CoCoOpSettings
from dear.methods.context import ContextPrompts, context_prompts, initial_context
from dear.methods.shared import two_layers

PROMPTS_AT_ONCE = 256
"""Prompts (pairs of an image and a class) that are encoded at once, unless training asks for fewer."""


class CoCoOp(Method):
    """Conditional context optimization: every image has its own prompts, so text features are computed for
    each image and class, in chunks whose activations are recomputed for gradients.

    Source: arXiv 2203.05557; github.com/KaiyangZhou/CoOp at ff61507, trainers/cocoop.py.
    """

    declaration = METHOD
    settings: CoCoOpSettings
    prompts_of_classes: ContextPrompts

    def __init__(
        self, clip: Clip, generator: torch.Generator, settings: CoCoOpSettings | None = None
    ) -> None:
        super().__init__(clip, generator, s := settings or CoCoOpSettings())
        self.text_from = 1
        self.words = " ".join(s.words.split()[: s.tokens])
        self.context = nn.Parameter(initial_context(clip, self.words, s.tokens, s.token_std, generator))
        like, embed = clip.image.projection, clip.image.embed_dim
        hidden = max(1, embed // s.reduction)
        self.meta_net = two_layers(like, generator, embed, hidden, clip.text.width, nn.ReLU())

    @torch.no_grad()
    def set_classes(self, classnames: Sequence[str], templates: Sequence[str]) -> None:
        super().set_classes(classnames, templates)
        self.prompts_of_classes = context_prompts(self.clip, classnames, self.words, self.settings.tokens)

    def text_features(self) -> TextFeatures:
        """Text features of the context without a shift by an image; not used for scores."""
        return normalize(self.clip.text.features(self.prompts_of_classes.trunk(self.context), 1), dim=-1)

    def logits(self, image: ImageFeatures, text: TextFeatures, *, decoupled: bool = False) -> Logits:
        """Scores with each image's own prompts."""
        del text, decoupled
        classes, features = len(self.classnames), image[0]
        contexts = self.context + self.meta_net(features).unsqueeze(1)
        rows = torch.arange(len(features) * classes, device=features.device)
        scores, size = [], self.text_chunk or PROMPTS_AT_ONCE
        if not torch.is_grad_enabled():
            size = min(PROMPTS_AT_ONCE, self.clip.text.prompts_at_once(self.prompts_of_classes.length))
        for chunk in rows.split(size):
            of_image, of_class = chunk // classes, chunk % classes
            if torch.is_grad_enabled() and len(chunk) < len(rows):
                text = checkpoint(self._text, contexts[of_image], of_class, use_reentrant=False)
            else:
                text = self._text(contexts[of_image], of_class)
            scores.append((features[of_image] * text).sum(dim=-1))
        return self.clip.scale * torch.cat(scores).view(-1, classes)

    def _text(
        self, contexts: Float[Tensor, "row context width"], classes: Int[Tensor, "row"]
    ) -> Float[Tensor, "row embed"]:
        return normalize(self.clip.text.features(self.prompts_of_classes.trunk(contexts, classes), 1), dim=-1)

    def loss(self, trunk: Trunk, labels: Labels, frozen: Target = None) -> Losses:
        """Cross-entropy of the scores."""
        del frozen
        scores = self.logits(self.image_features(trunk), self.frozen_text)
        return {"loss": self.label_loss(scores, labels)}
