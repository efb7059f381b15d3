"""Prompts whose context words are learned vectors: shared by CoOp, CoCoOp, MaPLe and PromptSRC.

A prompt is the context, the class name and a full stop. The context's places hold words at first, which the
learned vectors take over; these words' own embeddings may be where the vectors start.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dear.backbone.clip import Clip, fill
from dear.backbone.towers import TextTrunk
from dear.errors import SettingsError
from dear.methods.initial import normal

PLACE = "X"


@dataclass(frozen=True)
class ContextPrompts:
    """Prompts of classes at the input of the text tower.

    Attributes:
        words: Word embeddings without positions, cut at the last end-of-text (exact: attention is causal).
        positions: Position embeddings of the same places.
        end: Place of each prompt's end-of-text.
        order: What stands at each place: the word of that number or, counted on, the context vector.
    """

    words: Float[Tensor, "class token width"]
    positions: Float[Tensor, "token width"]
    end: Int[Tensor, "class"]
    order: Int[Tensor, "class token"]

    def trunk(
        self, context: Float[Tensor, "*row context width"], rows: Int[Tensor, "row"] | None = None
    ) -> TextTrunk:
        """The input of layer 1: one context for all classes or one for each; for ``rows``, the classes of the
        contexts.
        """
        words, order, end = self.words, self.order, self.end
        if rows is not None:
            words, order, end = words[rows], order[rows], end[rows]
        both = torch.cat([words, context.to(words.dtype).expand(len(words), -1, -1)], dim=1)
        placed = both.gather(1, order.unsqueeze(-1).expand(-1, -1, both.shape[-1]))
        return TextTrunk(placed + self.positions, end)


@torch.no_grad()
def context_prompts(
    clip: Clip, classnames: Sequence[str], words: str, tokens: int, before: int | None = None
) -> ContextPrompts:
    """Prompts of classes with ``tokens`` places of context, of which ``before`` (all if None) stand before
    the class name and the others after it. Raises SettingsError for prompts that do not fit.
    """
    ids = context_ids(clip, classnames, words, tokens)
    end = ids.argmax(dim=-1)
    ids = ids[:, : int(end.max()) + 1]
    order = torch.arange(ids.shape[1], device=ids.device).repeat(len(ids), 1)
    context = torch.arange(tokens, device=ids.device) + ids.shape[1]
    before = tokens if before is None else before
    for row, length in zip(order, _lengths(clip, fill("{}", classnames)), strict=True):
        name = torch.arange(1 + tokens, 1 + tokens + length, device=ids.device)
        row[1 : 1 + tokens + length] = torch.cat([context[:before], name, context[before:]])
    tower = clip.text
    return ContextPrompts(tower.token_embedding(ids), tower.positional_embedding[: ids.shape[1]], end, order)


def context_ids(
    clip: Clip, classnames: Sequence[str], words: str, tokens: int, after: str = "{}."
) -> Int[Tensor, "class token"]:
    """Ids of prompts whose context is the words, or placeholders if the words are fewer than ``tokens``;
    ``after`` is what follows it, the class name in its place. Raises SettingsError for prompts that do not
    fit.
    """
    context = words if tokens <= _lengths(clip, [words])[0] else " ".join([PLACE] * tokens)
    (length,) = _lengths(clip, [context])
    if length < tokens:
        raise SettingsError(
            f"{tokens} context tokens do not fit: the text tower takes {clip.text.context_length} in all."
        )
    names, rest = fill("{}", classnames), fill(after, classnames)
    for name, own in zip(names, _lengths(clip, rest), strict=True):
        wanted = 1 + length + own + 1  # start, context, what follows it, end
        if wanted > clip.text.context_length:
            raise SettingsError(
                f"the prompt of {name!r} has {wanted} tokens with {length} of context, and the text tower "
                f"takes {clip.text.context_length}: choose fewer tokens."
            )
    return clip.tokenize([f"{context} {each}" for each in rest])


@torch.no_grad()
def initial_context(
    clip: Clip, words: str, tokens: int, std: float, generator: torch.Generator
) -> Float[Tensor, "context width"]:
    """The first embeddings of the words, or normal values if the words are fewer than ``tokens``."""
    if tokens > _lengths(clip, [words])[0]:
        return normal(clip.text.projection, generator, tokens, clip.text.width, std=std)
    embedded: Tensor = clip.text.token_embedding(clip.tokenize([words]))
    return embedded[0, 1 : 1 + tokens].clone()


def _lengths(clip: Clip, texts: Sequence[str]) -> list[int]:
    """Tokens of texts between start and end."""
    found: list[int] = (clip.tokenize(texts).argmax(dim=-1) - 1).tolist()
    return found
