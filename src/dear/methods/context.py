"""Learned contexts: prompts of classes in which vectors stand in the places of words."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from dear.backbone.clip import Clip, fill
from dear.backbone.text import DeferredTokens, TextTower, TextTrunk, common_prefix
from dear.errors import SettingsError
from dear.methods.shared import normal

PROMPTS_AT_ONCE = 1024
"""Prompts that are compared at a time."""

PLACEHOLDER = "X"
"""A word of one token. Learned vectors take its positions."""


@dataclass(frozen=True)
class ContextPrompts:
    """Prompts of classes at the input of the text tower.

    Attributes:
        tower: The text tower.
        ids: Ids of the words, cut at the last end-of-text if attention is causal.
        end: Position of each prompt's end-of-text.
        order: What stands at each position: an index into the prompt's words followed by the context vectors.
        shared: Number of leading positions that are the same in all prompts of one context.
    """

    tower: TextTower
    ids: Int[Tensor, "class token"]
    end: Int[Tensor, "class"]
    order: Int[Tensor, "class token"]
    shared: int

    @property
    def length(self) -> int:
        """The number of tokens of each prompt."""
        return self.ids.shape[1]

    def trunk(
        self, context: Float[Tensor, "*row context width"], rows: Int[Tensor, "row"] | None = None
    ) -> TextTrunk:
        """The input of layer 1, for one context for all classes or one per class; ``rows`` selects the class
        of each context.
        """
        end = self.end if rows is None else self.end[rows]
        classes = torch.arange(len(end), device=end.device) if rows is None else rows

        def tokens(rows: Int[Tensor, "row"], length: int) -> Float[Tensor, "row shorter width"]:
            of_rows = context if context.ndim == 2 else context[rows]
            return self._tokens(of_rows, classes[rows], length)

        deferred = DeferredTokens(len(end), self.ids.shape[1], self.tower.width, tokens)
        return TextTrunk(deferred, end, self.shared if context.ndim == 2 else 0, self.tower.causal)

    def _tokens(
        self, context: Float[Tensor, "*row context width"], rows: Int[Tensor, "row"], length: int
    ) -> Float[Tensor, "row shorter width"]:
        """The tokens of some classes, cut to a length. Where the context is moved, a word before the cut may
        come from after it.
        """
        order, words = self.order[rows, :length].long(), self.ids.shape[1]
        ids = self.ids[rows].gather(1, order.clamp(max=words - 1))
        tokens = self.tower.token_embedding(ids)
        positions = torch.arange(length, device=order.device).expand_as(order)
        order = torch.where(order < words, positions, order - words + length)
        both = torch.cat([tokens, context.to(tokens.dtype).expand(len(tokens), -1, -1)], dim=1)
        placed = both.gather(1, order.unsqueeze(-1).expand(-1, -1, both.shape[-1]))
        return placed + self.tower.positional_embedding[:length]


@torch.no_grad()
def context_prompts(clip: Clip, classnames: Sequence[str], words: str, tokens: int) -> ContextPrompts:
    """Prompts of classes that begin with ``tokens`` context positions. A name that does not fit is cut.
    Raises as `prompt_ids`.
    """
    ids = context_ids(clip, classnames, words, tokens)
    return _placed(clip, ids, range(clip.first_word, clip.first_word + tokens))


def context_ids(
    clip: Clip, classnames: Sequence[str], words: str, tokens: int, after: str = "{}."
) -> Int[Tensor, "class token"]:
    """Ids of prompts whose context is the words, or placeholders if the words are fewer than ``tokens``;
    ``after`` is what follows it, with the class name in place of {}. Raises as `prompt_ids`.
    """
    context = words if tokens <= lengths(clip, [words])[0] else " ".join([PLACEHOLDER] * tokens)
    (length,) = lengths(clip, [context])
    if length < tokens:
        raise SettingsError(
            f"{tokens} context tokens do not fit: the text tower takes {clip.text.context_length} tokens."
        )
    return prompt_ids(clip, classnames, context, after)


def prompt_ids(
    clip: Clip, classnames: Sequence[str], lead: str, after: str = "{}."
) -> Int[Tensor, "class token"]:
    """Ids of the lead and of what follows it, with the class name in place of {}. Warns of names that are
    cut. Raises SettingsError for two that become equal, and for a lead that leaves no room for names.
    """
    (length,) = lengths(clip, [lead])
    if length >= clip.max_words:
        raise SettingsError(
            f"{length} tokens of context leave no room for class names, since the text tower takes "
            f"{clip.text.context_length}: choose fewer tokens."
        )
    prompts = [f"{lead} {ending}" for ending in fill(after, classnames)]
    clip.check_prompts(classnames, [prompts])
    return clip.tokenize(prompts)


@torch.no_grad()
def placed_prompts(
    clip: Clip, classnames: Sequence[str], lead: str, positions: Sequence[int]
) -> ContextPrompts:
    """Prompts of the lead, the class name and a full stop, with a context vector at each of the ``positions``
    among all tokens (the start is 0), in order. Raises as `prompt_ids`.
    """
    return _placed(clip, prompt_ids(clip, classnames, lead), positions)


def _placed(clip: Clip, ids: Int[Tensor, "class token"], positions: Sequence[int]) -> ContextPrompts:
    """Prompts of these words, with a context vector at each of the positions. The order is in int16, as there
    is a number for each token.
    """
    end, ids = clip.text.ends(ids), clip.text.cut(ids)
    order = torch.arange(ids.shape[1], dtype=torch.int16, device=ids.device).repeat(len(ids), 1)
    order[:, list(positions)] = (torch.arange(len(positions), device=ids.device) + ids.shape[1]).short()
    shared = 0
    if clip.text.causal:
        shared = min(
            common_prefix(_same_as_first(ids, order, rows), end[rows])
            for rows in torch.arange(len(ids), device=ids.device).split(PROMPTS_AT_ONCE)
        )
    return ContextPrompts(clip.text, ids.int(), end, order, shared)


def _same_as_first(
    ids: Int[Tensor, "class token"], order: Int[Tensor, "class token"], rows: Int[Tensor, "row"]
) -> Bool[Tensor, "row token"]:
    """True where some prompts have the first one's words or context vector."""
    length, first = ids.shape[1], torch.zeros_like(rows[:1])
    is_context = order[rows] >= length

    def words(of: Int[Tensor, "row"]) -> Int[Tensor, "row token"]:  # anything for context vectors
        return ids[of].gather(1, order[of].long().clamp(max=length - 1))

    return (order[rows] == order[first]) & (is_context | (words(rows) == words(first)))


@torch.no_grad()
def initial_context(
    clip: Clip, words: str, tokens: int, std: float, generator: torch.Generator
) -> Float[Tensor, "context width"]:
    """The first embeddings of the words, or normal values if the words are fewer than ``tokens``."""
    if clip.text.projection.is_meta or tokens > lengths(clip, [words])[0]:
        return normal(clip.text.projection, generator, tokens, clip.text.width, std=std)
    embedded: Tensor = clip.text.token_embedding(clip.tokenize([words]))
    return embedded[0, clip.first_word :][:tokens].clone()


def lengths(clip: Clip, texts: Sequence[str]) -> list[int]:
    """The number of tokens of each text, without the start and the end."""
    return clip.words_in(texts).tolist()
