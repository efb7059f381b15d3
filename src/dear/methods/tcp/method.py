"""TCP (Yao et al., CVPR 2024): tokens made from each class's frozen text feature enter the text tower."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import normalize

from dear.backbone.change import ClassTokens
from dear.backbone.clip import Clip, span_start
from dear.backbone.loading.skeleton import QuickGELU
from dear.backbone.text import TextTrunk
from dear.errors import SettingsError
from dear.methods.base import Labels, Losses, Method, Target, TextFeatures, Trunk
from dear.methods.context import PLACEHOLDER, context_ids
from dear.methods.shared import cosine_distance, normal, text_injection, two_layers
from dear.methods.shared_settings import templates_or
from dear.methods.tcp import METHOD, TcpSettings


class TCP(Method):
    """Textual-based class-aware prompts: a learned context, the same for all classes, stands before the class
    name; at the input of a later layer of the text tower it is replaced by tokens that a small network makes
    from the class's frozen text feature. The image tower is unchanged.

    Source: arXiv 2311.18231; github.com/htyao89/Textual-based_Class-aware_prompt_tuning at bd97bec,
    trainers/tcp.py and trainers/clip_text/model.py. As in the code: the weight of the distance from the
    frozen features (8) and the layer (the ninth) are constants; two templates are set for each data set, one
    for the frozen feature and one for the prompt; the context replaces the first words of the latter, and the
    other words stay ("person doing" on UCF101); class-aware tokens get no position embedding.

    Differs from the code: the code trains in half precision, and raises Adam's epsilon to 1e-3 for it; here
    no part is cast, and epsilon is torch's. The code reads, but never uses, a mixing weight of the two kinds
    of tokens, which is not here. Towers of any width and any number of tokens are taken [ours].
    """

    declaration = METHOD
    settings: TcpSettings
    placed: TextTrunk

    def __init__(self, clip: Clip, generator: torch.Generator, settings: TcpSettings | None = None) -> None:
        super().__init__(clip, generator, s := settings or TcpSettings())
        self.text_from = 1
        self.layer = _entry_layer(clip.text.depth, s)
        like, embed, width = clip.text.projection, clip.text.embed_dim, clip.text.width
        self.context = nn.Parameter(normal(like, generator, s.tokens, width, std=s.token_std))
        hidden = max(1, embed // s.reduction)
        self.meta_net = two_layers(like, generator, embed, hidden, s.tokens * width, QuickGELU())

    @torch.no_grad()
    def set_classes(self, classnames: Sequence[str], templates: Sequence[str]) -> None:
        """Set the classes; ``frozen_text`` is made
        with ``frozen_template``, if the settings have one."""
        frozen = templates_or(self.settings.frozen_template, templates)
        prompt = self.settings.template or templates[0]
        tokens = self.settings.tokens
        ids = context_ids(self.clip, classnames, "", tokens, after_context(prompt, tokens))
        super().set_classes(classnames, frozen)
        self.placed = self.clip.text.trunk(ids, 1)

    def class_tokens(self, frozen_text: TextFeatures) -> Float[Tensor, "class token width"]:
        """The class-aware tokens, from frozen text features."""
        tokens: Tensor = self.meta_net(frozen_text)
        return tokens.view(len(tokens), self.settings.tokens, -1)

    def text_features(self) -> TextFeatures:
        if torch.is_grad_enabled():
            return self._features(self.placed, self.frozen_text)
        rows = torch.arange(len(self.frozen_text), device=self.frozen_text.device)
        parts = rows.split(self.clip.text.prompts_at_once(self.placed.length))
        if len(parts) == 1:
            return self._features(self.placed, self.frozen_text)
        placed, frozen = self.placed, self.frozen_text
        return torch.cat([self._features(placed.of_rows(part), frozen[part]) for part in parts])

    def _features(self, placed: TextTrunk, frozen_text: TextFeatures) -> Float[Tensor, "class embed"]:
        of_class = ClassTokens(self.class_tokens(frozen_text), step=self.layer - 1)
        change = text_injection(self.clip.text, self.context[None], self.clip.first_word, of_class)
        return normalize(self.clip.text.features(placed, 1, change, self.text_chunk), dim=-1)

    def loss(self, trunk: Trunk, labels: Labels, frozen: Target = None) -> Losses:
        """Cross-entropy, and the distance of text features from the frozen ones, over all classes."""
        del frozen  # the image features are frozen themselves
        text = self.text_features()
        ce = self.label_loss(self.training_logits(self.image_features(trunk), text), labels)
        distance = cosine_distance(text, self.frozen_text)
        return {"loss": ce + self.settings.text_weight * distance, "ce": ce, "text": distance}


def after_context(template: str, tokens: int) -> str:
    """What follows the context in the prompts of a template. The context replaces the first words before the
    class name, and all placeholders.

    >>> after_context("a photo of a person doing {}.", 4), after_context("X X X X {} texture.", 4)
    ('person doing {}.', '{} texture.')
    """
    before, name, after = template.partition("{}")
    remaining = [word for word in before.split()[tokens:] if word != PLACEHOLDER]
    return " ".join([*remaining, f"{name}{after}"])


def _entry_layer(depth: int, settings: TcpSettings) -> int:
    """The layer that class-aware tokens enter. Raises SettingsError if the tower has no such layer."""
    if not settings.share and settings.layer > depth:
        raise SettingsError(f"layer is {settings.layer}: the text tower has {depth} layers only.")
    if depth == 1:
        raise SettingsError("tcp needs a text tower of 2 layers or more: its tokens enter after the first.")
    return max(2, span_start(depth, settings.layer)) if settings.share else settings.layer
