"""ATPrompt (Li et al., 2024): attribute words, each with learned tokens before it, stand in the prompt before
the learned tokens of the class.
"""

from collections.abc import Sequence

import torch
from torch import nn
from torch.nn.functional import normalize

from dear.backbone.change import UNCHANGED
from dear.backbone.clip import Clip
from dear.errors import SettingsError
from dear.methods.atprompt import METHOD, AtPromptSettings
from dear.methods.base import ImageFeatures, TextFeatures, Trunk
from dear.methods.context import PLACEHOLDER, ContextPrompts, lengths, placed_prompts
from dear.methods.shared import CoupledPrompts, normal


class ATPrompt(CoupledPrompts):
    """A prompt is, for each attribute, learned tokens and the attribute's word; then learned tokens, the
    class name and a full stop. With base "coop" that is all that is learned. With base "maple" the tokens of
    the class are MaPLe's: later layers replace them by new ones, and the image tower gets linear maps of
    them; the attributes' tokens evolve freely from layer 1 on and do not enter the image tower.

    Source: arXiv 2412.09442; github.com/zhengli97/ATPrompt at 86980a1, trainers/coop_atp.py,
    trainers/maple_atp.py, clip/model_atp.py, the words of train.py. As in the code: MaPLe's first prompt
    starts at random too, and "of a" does not stay.

    Differs from the code: no part is cast to half precision, and there are learned tokens for the attributes
    at hand only (the code makes three sets and leaves those without a word as they start). A word of several
    tokens is refused; the code counts one token a word, which ``by_position`` does too: for OxfordPets, of
    "play fulness" the second half is lost, "energy" never enters, and placeholders "X" stand in its place and
    before the class name. On a data set that is only tested, the words are those of the one that was trained
    on; the code puts the target's own words between the source's tokens. In towers of different depths,
    prompts of layers that only one has are used there [ours].
    """

    declaration = METHOD
    settings: AtPromptSettings
    prompts_of_classes: ContextPrompts
    tokens: int

    def __init__(
        self, clip: Clip, generator: torch.Generator, settings: AtPromptSettings | None = None
    ) -> None:
        super().__init__(clip, generator, s := settings or AtPromptSettings())
        self.tokens, self.coupled = s.tokens, s.base == "maple"
        self.image_from, self.text_from = 1 if self.coupled else clip.image.depth + 1, 1
        like, shape = clip.text.projection, (s.tokens, clip.text.width)
        self.context = nn.Parameter(normal(like, generator, *shape, std=s.token_std))
        self.attribute_context = nn.Parameter(
            normal(like, generator, len(s.attribute_words), *shape, std=s.attribute_std)
        )
        if self.coupled:
            self.couple(s.depth, s.token_std, generator, share=s.share)

    @property
    def class_position(self) -> int:
        """Position of the first learned token of the class in a prompt, after the attributes."""
        return self.clip.first_word + len(self.settings.attribute_words) * (self.tokens + 1)

    @torch.no_grad()
    def set_classes(self, classnames: Sequence[str], templates: Sequence[str]) -> None:
        """Set the classes. Raises SettingsError for a word of several tokens and prompts that do not fit."""
        self._check_words()
        super().set_classes(classnames, templates)
        gap = " ".join([PLACEHOLDER] * self.tokens)
        lead = " ".join([*(f"{gap} {word}" for word in self.settings.attribute_words), gap])
        firsts = range(self.clip.first_word, self.class_position + 1, self.tokens + 1)
        positions = [first + offset for first in firsts for offset in range(self.tokens)]
        self.prompts_of_classes = placed_prompts(self.clip, classnames, lead, positions)

    def _check_words(self) -> None:
        words = self.settings.attribute_words
        for word, tokens in zip(words, lengths(self.clip, words), strict=True):
            if tokens != 1 and not self.settings.by_position:
                raise SettingsError(
                    f"the attribute word {word!r} is {tokens} tokens of this backbone, but there is room for "
                    "one: give another with --atprompt.attributes, or do as the authors' code does with "
                    "--atprompt.by-position."
                )

    def image_features(self, trunk: Trunk) -> ImageFeatures:
        return super().image_features(trunk) if self.coupled else self.frozen_image(trunk).unsqueeze(0)

    def text_features(self) -> TextFeatures:
        learned = torch.cat([self.attribute_context.flatten(0, 1), self.context])
        trunk = self.prompts_of_classes.trunk(learned)
        change = self.text_injection(self.class_position) if self.coupled else UNCHANGED
        return normalize(self.clip.text.features(trunk, 1, change, self.text_chunk), dim=-1)
