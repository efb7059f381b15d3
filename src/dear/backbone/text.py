"""The text tower, and prompts at the input of its span: their tokens, stored or computed when needed."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from dear.backbone.attention import PackedSequences, causal_bias
from dear.backbone.block import Block
from dear.backbone.change import UNCHANGED, Change
from dear.backbone.openclip import TEXT_CLASS, is_instance
from dear.backbone.towers import Tower, as_matrix, outside_autocast

MAX_HIDDEN_VALUES = 2**27
"""Hidden values of a layer, at most, for the prompts that are computed together."""

MAX_STORED_VALUES = 2**26
"""Values up to which the trunks of a list of classes are stored (256 MiB); larger ones are recomputed."""


GROUP_WORTH = 2**19
"""Padding tokens x width squared above which prompts of one length are computed in a separate group."""


@dataclass
class DeferredTokens:
    """Tokens of prompts that are computed for some prompts at a time: those of 25,000 may take gigabytes.
    Training, which needs all of them in each step, stores them.

    Attributes:
        compute: Returns the tokens of some prompts, cut to a length.
    """

    prompts: int
    length: int
    width: int
    compute: Callable[[Int[Tensor, "row"], int], Float[Tensor, "row shorter width"]]
    stored: Float[Tensor, "class token width"] | None = field(default=None, repr=False)

    def all(self, device: torch.device) -> Float[Tensor, "class token width"]:
        """The tokens of all prompts."""
        if self.stored is not None:
            return self.stored
        tokens = self.compute(torch.arange(self.prompts, device=device), self.length)
        if torch.is_grad_enabled():
            self.stored = tokens
        return tokens

    def of_rows(self, rows: Int[Tensor, "row"]) -> "DeferredTokens":
        """The tokens of some of the prompts."""
        return DeferredTokens(
            len(rows), self.length, self.width, lambda part, stop: self.compute(rows[part], stop)
        )


@dataclass(frozen=True)
class TextTrunk:
    """Prompts at the input of the text span.

    Attributes:
        source: Their tokens, cut at the batch's last end if attention is causal, or what computes them.
        end: The position at which each prompt is read.
        prefix: Number of leading tokens, before any end, that are the same in all prompts and depend on no
            other tokens: 0 without causal attention.
        is_causal: False if a token also depends on those that follow it.
    """

    source: Float[Tensor, "class token width"] | DeferredTokens
    end: Int[Tensor, "class"]
    prefix: int = 0
    is_causal: bool = True

    @property
    def tokens(self) -> Float[Tensor, "class token width"]:
        """All tokens."""
        return self.source.all(self.end.device) if isinstance(self.source, DeferredTokens) else self.source

    @property
    def length(self) -> int:
        """The number of tokens of each prompt."""
        return self.source.length if isinstance(self.source, DeferredTokens) else self.source.shape[1]

    def part(self, rows: Int[Tensor, "row"], start: int, stop: int) -> Float[Tensor, "row part width"]:
        """The tokens of some prompts from position ``start`` to ``stop``."""
        if isinstance(self.source, DeferredTokens) and self.source.stored is None:
            return self.source.compute(rows, stop)[:, start:]
        return self.tokens[:, start:stop].index_select(0, rows)

    def of_rows(self, rows: Int[Tensor, "row"]) -> "TextTrunk":
        """The trunk of some prompts."""
        if isinstance(self.source, DeferredTokens) and not torch.is_grad_enabled():
            return replace(self, source=self.source.of_rows(rows), end=self.end[rows])
        return replace(self, source=self.tokens[rows], end=self.end[rows])

    def has_prefix(self, change: Change) -> bool:
        """True if all prompts begin with the same tokens, with a change of their span too."""
        return self.prefix > 0 and change.is_shared(self.prefix)

    def groups(self, width: int, chunk: int = 0) -> list[tuple[Int[Tensor, "row"], int]] | None:
        """Groups of prompts that are computed together, each with the length that they are cut to; None for a
        single group of all prompts.

        Prompts with attention in both directions have one length. On a GPU, where launching kernels is
        costly, prompts are not grouped by length. On a CPU a length gets a group of its own if that saves
        enough padding.
        """
        order = self.end.argsort(stable=True)
        if self.end.device.type != "cpu" or not self.is_causal:
            return None if not chunk else [(rows, self.length) for rows in order.split(chunk)]
        lengths, counts = self.end.sort().values.add(1).unique_consecutive(return_counts=True)
        next_lengths = [*lengths.tolist()[1:], None]
        sizes, cut_lengths, size = [], [], 0
        for length, count, longer in zip(lengths.tolist(), counts.tolist(), next_lengths, strict=True):
            size += count
            if longer is None or size * (longer - length) * width**2 >= GROUP_WORTH:
                sizes.append(size)
                cut_lengths.append(length)
                size = 0
        if len(sizes) == 1 and not chunk:
            return None
        return [
            (rows, length)
            for group, length in zip(order.split(sizes), cut_lengths, strict=True)
            for rows in group.split(chunk or len(group))
        ]


def common_prefix(same: Bool[Tensor, "prompt token"], end: Int[Tensor, "prompt"]) -> int:
    """The number of leading tokens, before any prompt's end, that are the same in all prompts."""
    run = same.all(dim=0).long().cumprod(dim=0).sum()
    return int(torch.minimum(run, end.min()))


class TextTower(Tower):
    """The text tower, causal or not. A prompt is read at one token: that of the highest id (CLIP's end of
    text), its first end of text, or its last position (SigLIP and CLIPA, which read the padding at the end).
    """

    EMBEDDINGS = ("token_embedding", "positional_embedding")
    positional_embedding: Tensor

    def __init__(self, source: Any) -> None:
        projection, bias = as_matrix(source.text_projection, source.ln_final)
        blocks = [Block(b) for b in source.transformer.resblocks]
        super().__init__(blocks, source.ln_final, projection, bias)
        self.token_embedding: nn.Module = source.token_embedding
        self.positional_embedding = source.positional_embedding
        self.context_length = int(source.context_length)
        separate = is_instance(source, TEXT_CLASS)
        self.pool: str = source.pool_type if separate else source.text_pool_type
        self.end_id: int = source.eos_id if separate else source.text_eos_id
        self.causal: bool = source.attn_mask is not None

    def embed(self, ids: Int[Tensor, "class token"]) -> Float[Tensor, "class token width"]:
        """Word and position embeddings: the input of layer 1."""
        words: Tensor = self.token_embedding(ids)
        return words + self.positional_embedding[: ids.shape[1]]

    def ends(self, ids: Int[Tensor, "class token"]) -> Int[Tensor, "class"]:
        """The position at which each prompt is read."""
        if self.pool == "last":
            return torch.full((len(ids),), ids.shape[1] - 1, device=ids.device)
        return (ids if self.pool == "argmax" else (ids == self.end_id).int()).argmax(dim=-1)

    def cut(self, ids: Int[Tensor, "class token"]) -> Int[Tensor, "class shorter"]:
        """Prompts without the tokens after the last end, which cannot matter if attention is causal."""
        return ids[:, : int(self.ends(ids).max()) + 1] if self.causal else ids

    def trunk(
        self, ids: Int[Tensor, "class token"], first: int, most_stored: int = MAX_STORED_VALUES
    ) -> TextTrunk:
        """The input of layer ``first``; past the last layer, only the token at which each prompt is read.
        The input of layer 1, and any of more values than ``most_stored``, is computed when it is needed.
        """
        cut, end = self.cut(ids), self.ends(ids)
        if first > self.depth:
            return TextTrunk(self._read_tokens(cut, end), torch.zeros_like(end), 0, self.causal)
        prefix = common_prefix(ids == ids[:1], end) if self.causal else 0
        if first == 1 or cut.numel() * self.width > most_stored:
            compute = partial(self._deferred_tokens, cut.int(), first)
            deferred = DeferredTokens(len(cut), cut.shape[1], self.width, compute)
            return TextTrunk(deferred, end, prefix, self.causal)
        rows = torch.arange(len(end), device=end.device).split(self.prompts_at_once(cut.shape[1]))
        parts = [self._trunk_tokens(cut, first, part, cut.shape[1]) for part in rows]
        return TextTrunk(parts[0] if len(parts) == 1 else torch.cat(parts), end, prefix, self.causal)

    def _trunk_tokens(
        self, ids: Int[Tensor, "class token"], first: int, rows: Int[Tensor, "row"], stop: int
    ) -> Float[Tensor, "row shorter width"]:
        """The input of layer ``first`` of some prompts, cut if attention is causal."""
        x = self.embed(ids[rows, :stop])
        return self.layers(x, 1, first - 1, self._bias(x))

    def _deferred_tokens(
        self, ids: Int[Tensor, "class token"], first: int, rows: Int[Tensor, "row"], stop: int
    ) -> Float[Tensor, "row shorter width"]:
        """The same outside autocast, so that it does not matter when they are computed."""
        with outside_autocast(ids.device):
            return self._trunk_tokens(ids, first, rows, stop)

    def _read_tokens(
        self, ids: Int[Tensor, "class token"], end: Int[Tensor, "class"]
    ) -> Float[Tensor, "class 1 width"]:
        """The output of the last layer at the token at which each prompt is read. Many prompts are computed
        in the order of their lengths, so that a long one does not pad all.
        """
        past, size = self.depth + 1, self.prompts_at_once(ids.shape[1])
        order = torch.arange(len(ids), device=end.device)
        if len(ids) > size and self.causal:
            order = end.argsort(stable=True)
        parts = list[Tensor]()
        for rows in order.split(size):
            last = end[rows]
            x = self._trunk_tokens(ids, past, rows, int(last.max()) + 1 if self.causal else ids.shape[1])
            parts.append(x[torch.arange(len(x), device=x.device), last].unsqueeze(1))
        return parts[0] if len(parts) == 1 else torch.cat(parts).index_select(0, order.argsort())

    def _bias(self, x: Float[Tensor, "class token width"], extra: int = 0) -> Tensor | None:
        return causal_bias(x.shape[1] + extra, x) if self.causal else None

    def features(
        self,
        trunk: TextTrunk,
        first: int,
        change: Change = UNCHANGED,
        chunk: int = 0,
    ) -> Float[Tensor, "class embed"]:
        """Text embeddings, not normalized, from a trunk at layer ``first``. Added tokens shift the end.

        Prompts of one length are computed together, cut at their end. With causal attention, the tokens that
        all prompts begin with are computed once, unless ``change`` differs by prompt.
        ``chunk`` limits how many prompts are computed at a time; activations are then recomputed for
        gradients.
        """
        if not torch.is_grad_enabled():
            chunk = min(chunk or len(trunk.end), self.prompts_at_once(trunk.length + change.added))
        chunk = chunk if chunk < len(trunk.end) else 0
        if torch.is_grad_enabled() or not chunk:
            trunk = replace(trunk, source=trunk.tokens)
        groups, has_prefix = trunk.groups(self.width, chunk), trunk.has_prefix(change)
        if groups is None:
            if not has_prefix:
                return self._features(trunk.tokens, trunk.end, first, change)
            groups = [(torch.arange(len(trunk.end), device=trunk.end.device), trunk.length)]
        calls: list[Callable[[], Tensor]]
        if has_prefix:
            batches = [[group] for group in groups] if chunk else [groups]
            calls = [partial(self._packed_features, trunk, batch, first, change) for batch in batches]
        else:
            calls = [
                partial(self._features_of, trunk, rows, length, first, change) for rows, length in groups
            ]
        recompute = chunk and torch.is_grad_enabled()
        # Nothing here draws from a shared generator, so there is no random state to preserve.
        parts = [
            checkpoint(call, use_reentrant=False, preserve_rng_state=False) if recompute else call()
            for call in calls
        ]
        order = torch.cat([rows for rows, _ in groups])
        return torch.cat(parts).index_select(0, order.argsort())

    def _features_of(
        self,
        trunk: TextTrunk,
        rows: Int[Tensor, "row"],
        length: int,
        first: int,
        change: Change,
    ) -> Float[Tensor, "row embed"]:
        """The features of some prompts, cut to a length."""
        return self._features(
            trunk.part(rows, 0, length),
            trunk.end[rows],
            first,
            change.rows(rows, len(trunk.end)),
        )

    def _packed_features(
        self,
        trunk: TextTrunk,
        groups: list[tuple[Int[Tensor, "row"], int]],
        first: int,
        change: Change,
    ) -> Float[Tensor, "row embed"]:
        """The features of groups of prompts with a common prefix, in the groups' order. All tokens are packed
        into one sequence, so that each weight matrix is applied to them at once.
        """
        prefix, added = trunk.prefix, change.added
        first_prompt = torch.zeros(1, dtype=torch.long, device=trunk.end.device)
        tokens, ends, start = [trunk.part(first_prompt, 0, prefix)[0]], [], prefix + added
        for rows, length in groups:
            suffix = length - prefix
            tokens.append(trunk.part(rows, prefix, length).flatten(0, 1))
            starts = torch.arange(len(rows), device=rows.device) * suffix + start
            ends.append(starts + trunk.end[rows] - prefix)
            start += len(rows) * suffix
        x = torch.cat(tokens).unsqueeze(0)
        longest = max(length for _, length in groups) + added
        sizes = tuple((len(rows), length - prefix) for rows, length in groups)
        packed = PackedSequences(prefix + added, sizes, causal_bias(longest, x))
        out = self.span(x, first, change, bias=packed, read=torch.cat(ends))
        return self.finish(out[0])

    def _features(
        self,
        tokens: Float[Tensor, "class token width"],
        end: Int[Tensor, "class"],
        first: int,
        change: Change,
    ) -> Float[Tensor, "class embed"]:
        bias, read = self._bias(tokens, change.added), (end + change.added).unsqueeze(1)
        out = self.span(tokens, first, change, bias=bias, read=read)
        return self.finish(out[:, 0])

    def forward(self, ids: Int[Tensor, "class token"]) -> Float[Tensor, "class embed"]:
        """CLIP's text embedding, not normalized."""
        parts = ids.split(self.prompts_at_once(self.cut(ids).shape[1]))
        features = [self.features(self.trunk(part, self.depth), self.depth) for part in parts]
        return features[0] if len(features) == 1 else torch.cat(features)

    def prompts_at_once(self, tokens: int) -> int:
        """How many prompts of ``tokens`` tokens to compute together: their hidden values fit into 512 MiB."""
        return max(1, MAX_HIDDEN_VALUES // (tokens * self.widest))
