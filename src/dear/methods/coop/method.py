"""CoOp (Zhou et al., IJCV 2022): the words around the class name become learned vectors."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import normalize

from dear.backbone.clip import Clip
from dear.methods.base import Method, TextFeatures
from dear.methods.context import ContextPrompts, context_prompts, initial_context
from dear.methods.coop import METHOD, CoOpSettings


class CoOp(Method):
    """Context optimization: the image tower is unchanged, so its features are computed once per image.

    Source: arXiv 2109.01134; github.com/KaiyangZhou/CoOp at ff61507, trainers/coop.py. The base-to-novel runs
    were published with CoCoOp: 4 tokens, initialized from "a photo of a".

    Differs from the code: if there are fewer tokens than words, the first words are used [ours], and
    class-specific contexts are initialized from the words too [ours], where the code would silently share one
    context.
    """

    declaration = METHOD
    settings: CoOpSettings
    prompts_of_classes: ContextPrompts
    context: nn.Parameter
    generator: torch.Generator

    def __init__(self, clip: Clip, generator: torch.Generator, settings: CoOpSettings | None = None) -> None:
        super().__init__(clip, generator, s := settings or CoOpSettings())
        self.text_from = 1
        self.open_vocabulary = not s.class_specific
        self.words = " ".join(s.words.split()[: s.tokens])
        self.generator = generator
        if not s.class_specific:
            self.context = nn.Parameter(self._initial_context())

    def _initial_context(self) -> Float[Tensor, "context width"]:
        s = self.settings
        return initial_context(self.clip, self.words, s.tokens, s.token_std, self.generator)

    @torch.no_grad()
    def set_classes(self, classnames: Sequence[str], templates: Sequence[str]) -> None:
        """Set the classes; with ``class_specific``, the first ones get one context each."""
        s, first = self.settings, not self.classnames
        super().set_classes(classnames, templates)
        self.prompts_of_classes = context_prompts(self.clip, classnames, self.words, s.tokens)
        if s.class_specific and first:
            self.context = nn.Parameter(torch.stack([self._initial_context() for _ in classnames]))

    def text_features(self) -> TextFeatures:
        trunk = self.prompts_of_classes.trunk(self.context)
        return normalize(self.clip.text.features(trunk, 1, chunk=self.text_chunk), dim=-1)
