"""Prompts whose context words are learned vectors: shared by CoOp, CoCoOp, MaPLe, PromptSRC and ATPrompt.

A prompt is the context, the class name and a full stop. The context's positions first hold words, which the
learned vectors replace; the embeddings of these words may initialise the vectors.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dear.backbone.clip import Clip, fill
from dear.backbone.towers import TextTrunk, alike
from dear.errors import SettingsError
from dear.methods.initial import normal

PLACE = "X"


@dataclass(frozen=True)
class ContextPrompts:
    """Prompts of classes at the input of the text tower.

    Attributes:
        words: Word embeddings without positions, cut at the last end-of-text if attention is causal.
        positions: The corresponding position embeddings.
        end: Position of each prompt's end-of-text.
        order: Index, for each position, into the words followed by the context vectors.
        shared: Number of first positions that are the same in all prompts with one context.
        whole: Whether the prompts are not cut.
    """

    words: Float[Tensor, "class token width"]
    positions: Float[Tensor, "token width"]
    end: Int[Tensor, "class"]
    order: Int[Tensor, "class token"]
    shared: int
    whole: bool = False

    def trunk(
        self, context: Float[Tensor, "*row context width"], rows: Int[Tensor, "row"] | None = None
    ) -> TextTrunk:
        """The input of layer 1, for one context for all classes or one per class; ``rows`` selects the class
        of each context.
        """
        words, order, end = self.words, self.order, self.end
        if rows is not None:
            words, order, end = words[rows], order[rows], end[rows]
        both = torch.cat([words, context.to(words.dtype).expand(len(words), -1, -1)], dim=1)
        placed = both.gather(1, order.unsqueeze(-1).expand(-1, -1, both.shape[-1]))
        shared = self.shared if context.ndim == 2 else 0
        return TextTrunk(placed + self.positions, end, shared, self.whole)


@torch.no_grad()
def context_prompts(
    clip: Clip, classnames: Sequence[str], words: str, tokens: int, before: int | None = None
) -> ContextPrompts:
    """Prompts of classes with ``tokens`` context positions, of which ``before`` (all if None) precede the
    class name and the others follow it. Raises SettingsError for prompts that are too long.
    """
    ids = context_ids(clip, classnames, words, tokens)
    end, ids = clip.text.ends(ids), clip.text.cut(ids)
    order = torch.arange(ids.shape[1], device=ids.device).repeat(len(ids), 1)
    context = torch.arange(tokens, device=ids.device) + ids.shape[1]
    before = tokens if before is None else before
    for row, length in zip(order, lengths(clip, fill("{}", classnames)), strict=True):
        first = clip.first_word
        name = torch.arange(tokens, tokens + length, device=ids.device) + first
        row[first : first + tokens + length] = torch.cat([context[:before], name, context[before:]])
    return _prompts(clip, ids, end, order)


def context_ids(
    clip: Clip, classnames: Sequence[str], words: str, tokens: int, after: str = "{}."
) -> Int[Tensor, "class token"]:
    """Ids of prompts whose context is the words, or placeholders if the words are fewer than ``tokens``;
    ``after`` is what follows it, with the class name in place of {}. Raises SettingsError for prompts that do
    not fit.
    """
    context = words if tokens <= lengths(clip, [words])[0] else " ".join([PLACE] * tokens)
    (length,) = lengths(clip, [context])
    if length < tokens:
        raise SettingsError(
            f"{tokens} context tokens do not fit: the text tower takes {clip.text.context_length} tokens."
        )
    return prompt_ids(clip, classnames, context, after)


def prompt_ids(
    clip: Clip, classnames: Sequence[str], lead: str, after: str = "{}."
) -> Int[Tensor, "class token"]:
    """Ids of the lead and of what follows it, with the class name in place of {}. Raises SettingsError for
    prompts that do not fit.
    """
    (length,), rest = lengths(clip, [lead]), fill(after, classnames)
    for name, own in zip(fill("{}", classnames), lengths(clip, rest), strict=True):
        wanted = clip.first_word + length + own + 1  # start, lead, what follows it, end
        if wanted > clip.text.context_length:
            raise SettingsError(
                f"the prompt of {name!r} has {wanted} tokens with {length} of context, but the text tower "
                f"takes {clip.text.context_length}: choose fewer tokens."
            )
    return clip.tokenize([f"{lead} {each}" for each in rest])


@torch.no_grad()
def placed_prompts(clip: Clip, classnames: Sequence[str], lead: str, places: Sequence[int]) -> ContextPrompts:
    """Prompts of the lead, the class name and a full stop, with a context vector at each of ``places`` among
    all tokens (the start is 0), in order. Raises SettingsError for prompts that do not fit.
    """
    ids = prompt_ids(clip, classnames, lead)
    end, ids = clip.text.ends(ids), clip.text.cut(ids)
    order = torch.arange(ids.shape[1], device=ids.device).repeat(len(ids), 1)
    order[:, list(places)] = torch.arange(len(places), device=ids.device) + ids.shape[1]
    return _prompts(clip, ids, end, order)


def _prompts(
    clip: Clip, ids: Int[Tensor, "class token"], end: Int[Tensor, "class"], order: Int[Tensor, "class token"]
) -> ContextPrompts:
    tower, length = clip.text, ids.shape[1]
    placed = ids.gather(1, order.clamp(max=length - 1))  # ids of words; of context vectors any
    same = (order == order[:1]) & ((order >= length) | (placed == placed[:1]))
    shared = alike(same, end) if tower.causal else 0
    positions = tower.positional_embedding[:length]
    return ContextPrompts(tower.token_embedding(ids), positions, end, order, shared, not tower.causal)


@torch.no_grad()
def initial_context(
    clip: Clip, words: str, tokens: int, std: float, generator: torch.Generator
) -> Float[Tensor, "context width"]:
    """The first embeddings of the words, or normal values if the words are fewer than ``tokens``."""
    if tokens > lengths(clip, [words])[0]:
        return normal(clip.text.projection, generator, tokens, clip.text.width, std=std)
    embedded: Tensor = clip.text.token_embedding(clip.tokenize([words]))
    return embedded[0, clip.first_word :][:tokens].clone()


def lengths(clip: Clip, texts: Sequence[str]) -> list[int]:
    """Tokens of texts between start and end."""
    return clip.words_in(texts).tolist()
