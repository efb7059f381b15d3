"""CLIP's two towers, each split into a trunk (frozen layers) and a span (layers that a method changes).

Layers are counted from 1 to ``depth``. ``trunk`` runs layers 1 to J-1, ``span`` runs J to the last; any J
gives the same features. Learned tokens enter a span through one `Injection`, whatever the method.
"""

import copy
from dataclasses import dataclass
from typing import Any, Self

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from dear.backbone.attention import Packed, causal_bias
from dear.backbone.block import Block
from dear.backbone.injection import Injection
from dear.backbone.kinds import TEXT, is_a
from dear.backbone.rotary import Turn

GROUP_WORTH = 2**19
"""Padding tokens x width squared above which prompts of a given length are computed in a separate group."""

Bias = (
    Float[Tensor, "*#batch #head token token"]
    | list[Float[Tensor, "*#batch #head token token"]]
    | Packed
    | None
)


class Tower(nn.Module):
    """A stack of blocks with a final LayerNorm and projection, which may have a bias."""

    projection_bias: Tensor | None

    def __init__(
        self, blocks: list[Block], ln_final: nn.Module, projection: Tensor, bias: Tensor | None = None
    ) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(blocks)
        self.ln_final = ln_final
        self.projection = projection
        self.projection_bias = bias

    @property
    def depth(self) -> int:
        return len(self.blocks)

    @property
    def width(self) -> int:
        return int(self.projection.shape[0])

    @property
    def heads(self) -> int:
        return self.block(1).heads

    @property
    def embed_dim(self) -> int:
        return int(self.projection.shape[1])

    def block(self, layer: int) -> Block:
        """The block of a layer, counted from 1."""
        block = self.blocks[layer - 1]
        assert isinstance(block, Block)
        return block

    def late(self, first: int) -> Self:
        """A trainable copy of layers ``first`` to the last, the final LayerNorm and the projection: a tower
        whose layer 1 is that layer. It embeds nothing, its inputs are trunk outputs.
        """
        made = copy.copy(self)  # of the kind of this tower; what is registered is replaced next
        blocks = [copy.deepcopy(self.block(layer)) for layer in range(first, self.depth + 1)]
        end = copy.deepcopy((self.ln_final, self.projection, self.projection_bias))
        Tower.__init__(made, blocks, *end)
        return made.requires_grad_(True)

    def layers(
        self, x: Float[Tensor, "batch token width"], first: int, last: int, bias: Tensor | None = None
    ) -> Float[Tensor, "batch token width"]:
        """Layers ``first`` to ``last`` (counted from 1, inclusive)."""
        turn = self.turn()
        for block in self.blocks[first - 1 : last]:
            x = block(x, bias, turn=turn)
        return x

    def turn(self, inject: Injection | None = None) -> Turn | None:
        """The rotation of the tokens' queries and keys, after injection; None without a rotary embedding."""
        del inject
        return None

    def span(
        self,
        x: Float[Tensor, "batch token width"],
        first: int,
        *,
        bias: Bias = None,
        inject: Injection | None = None,
        read: Int[Tensor, "*batch read"] | None = None,
    ) -> Float[Tensor, "batch read width"]:
        """Layers ``first`` to the last, with learned tokens injected; the last only at tokens in ``read``.

        ``bias`` covers the tokens after injection; a list has one per layer of the span. ``read`` holds token
        positions after injection, the same for the whole batch (1-D) or one row per item (2-D); None reads
        all of them. If ``first`` is past the last layer, the tokens are read unchanged.
        """
        done, turn = 0, self.turn(inject)
        if inject is not None:
            if first < self.depth:
                x, done = self._entered(x, first, inject, _at(bias, 0), turn), 1
            else:
                x = inject.enter(x)
        for step in range(done, self.depth - first):
            if inject is not None:
                x = inject.anchor(x, step)
            x = self.blocks[first + step - 1](x, _at(bias, step), turn=turn)
        if first > self.depth:
            return x if read is None else _rows(x, read)
        if inject is not None and first < self.depth:
            x = inject.anchor(x, self.depth - first)
        last = _at(bias, self.depth - first)
        if read is None:
            whole: Tensor = self.blocks[-1](x, last, turn=turn)
            return whole
        turn = None if turn is None else turn.rows(read)
        out: Tensor = self.blocks[-1](x, _bias_rows(last, read), _rows(x, read), turn)
        return out

    def _entered(
        self,
        x: Float[Tensor, "batch token width"],
        layer: int,
        inject: Injection,
        bias: Tensor | Packed | None,
        turn: Turn | None,
    ) -> Float[Tensor, "batch longer width"]:
        """The layer at which tokens are injected. Their queries, keys and values are computed separately,
        once for the batch, so that no gradient flows through those of a frozen ``x``.
        """
        block, raw = self.block(layer), inject.raw(x)
        projected = inject.put(block.project(x), block.project(raw))
        return block.onwards(inject.put(x, raw), projected, bias, turn)

    def finish(
        self, x: Float[Tensor, "*any width"], projection: Float[Tensor, "width embed"] | None = None
    ) -> Float[Tensor, "*any embed"]:
        """Final LayerNorm and projection into the joint space, not normalised; another ``projection`` takes
        the place of the tower's, with the same bias.
        """
        return self.projected(self.ln_final(x), self.projection if projection is None else projection)

    def projected(
        self, x: Float[Tensor, "*any width"], projection: Float[Tensor, "width embed"]
    ) -> Float[Tensor, "*any embed"]:
        """The projection alone."""
        embedded = x @ projection
        return embedded if self.projection_bias is None else embedded + self.projection_bias


@dataclass(frozen=True)
class TextTrunk:
    """Prompts at the input of the text span, and the place at which each is read, its end. They are cut at
    the batch's last end unless ``whole``: without causal attention they also depend on what follows.

    Attributes:
        shared: Number of first tokens, before any end, that are the same in all prompts and depend on no
            others: 0 without causal attention.
    """

    tokens: Float[Tensor, "class token width"]
    end: Int[Tensor, "class"]
    shared: int = 0
    whole: bool = False

    def begin_alike(self, inject: Injection | None) -> bool:
        """Whether prompts begin with tokens that can be computed once for all, learned ones among them."""
        if inject is None or self.shared == 0:
            return self.shared > 0
        last = (inject.at or 0) + (inject.tokens.shape[-2] if inject.written else 0)
        return inject.of_class is None and inject.at is not None and last <= self.shared

    def groups(self, width: int, chunk: int = 0) -> list[tuple[Int[Tensor, "some"], int]] | None:
        """Groups of classes whose prompts are computed together, each with the length that they are cut at;
        None for a single group of all prompts.

        Whole prompts have one length. On a GPU, where launching kernels is costly, prompts are not grouped by
        length. Elsewhere a length gets a group of its own if that saves enough padding.
        """
        if self.end.device.type != "cpu" or self.whole:
            return None if not chunk else [(rows, self.tokens.shape[1]) for rows in self._rows().split(chunk)]
        lengths, counts = self.end.sort().values.add(1).unique_consecutive(return_counts=True)
        sizes, last, held = [], [], 0
        for length, count, longer in zip(
            lengths.tolist(), counts.tolist(), [*lengths.tolist()[1:], None], strict=True
        ):
            held += count
            if longer is None or held * (longer - length) * width**2 >= GROUP_WORTH:
                sizes.append(held)
                last.append(length)
                held = 0
        if len(sizes) == 1 and not chunk:
            return None
        parts = self._rows().split(sizes)
        return [
            (rows, length)
            for part, length in zip(parts, last, strict=True)
            for rows in part.split(chunk or len(part))
        ]

    def _rows(self) -> Int[Tensor, "class"]:
        return self.end.argsort(stable=True)


class TextTower(Tower):
    """The text tower, read at one token: its highest id (CLIP's end-of-text), its first end-of-text, or its
    last place (SigLIP, CLIPA, which read the padding at the end). Causal or not.
    """

    positional_embedding: Tensor

    def __init__(self, source: Any) -> None:
        projection, bias = plain_projection(source.text_projection, source.ln_final)
        blocks = [Block(b) for b in source.transformer.resblocks]
        super().__init__(blocks, source.ln_final, projection, bias)
        self.token_embedding: nn.Module = source.token_embedding
        self.positional_embedding = source.positional_embedding
        self.context_length = int(source.context_length)
        own = is_a(source, TEXT)
        self.pool: str = source.pool_type if own else source.text_pool_type
        self.end_id: int = source.eos_id if own else source.text_eos_id
        self.causal: bool = source.attn_mask is not None

    def embed(self, ids: Int[Tensor, "class token"]) -> Float[Tensor, "class token width"]:
        """Word and position embeddings: the input of layer 1."""
        words: Tensor = self.token_embedding(ids)
        return words + self.positional_embedding[: ids.shape[1]]

    def ends(self, ids: Int[Tensor, "class token"]) -> Int[Tensor, "class"]:
        """The place at which each prompt is read."""
        if self.pool == "last":
            return torch.full((len(ids),), ids.shape[1] - 1, device=ids.device)
        return (ids if self.pool == "argmax" else (ids == self.end_id).int()).argmax(dim=-1)

    def cut(self, ids: Int[Tensor, "class token"]) -> Int[Tensor, "class shorter"]:
        """Prompts without what cannot matter: all after the last end, if attention is causal."""
        return ids[:, : int(self.ends(ids).max()) + 1] if self.causal else ids

    def trunk(self, ids: Int[Tensor, "class token"], first: int) -> TextTrunk:
        """The input of layer ``first``. Cutting the padding is exact, as attention is causal."""
        x, end = self.embed(self.cut(ids)), self.ends(ids)
        shared = alike(ids == ids[:1], end) if self.causal else 0
        return TextTrunk(self.layers(x, 1, first - 1, self._bias(x)), end, shared, not self.causal)

    def _bias(self, x: Float[Tensor, "class token width"], extra: int = 0) -> Tensor | None:
        return causal_bias(x.shape[1] + extra, x) if self.causal else None

    def features(
        self, trunk: TextTrunk, first: int, inject: Injection | None = None, chunk: int = 0
    ) -> Float[Tensor, "class embed"]:
        """Text embeddings, not normalised, from a trunk at layer ``first``; injected tokens shift the end.

        Prompts of one length are computed together, cut at their end, and tokens that all prompts begin with
        once for all, if attention is causal. ``chunk`` limits how many prompts go at a time; activations are
        then recomputed for gradients instead of kept.
        """
        chunk = chunk if chunk < len(trunk.end) else 0
        groups = trunk.groups(self.width, chunk)
        begin_alike = trunk.begin_alike(inject)
        if groups is None:
            if not begin_alike:
                return self._features(trunk.tokens, trunk.end, first, inject)
            groups = [(torch.arange(len(trunk.end), device=trunk.end.device), trunk.tokens.shape[1])]
        work: list[tuple[Any, ...]] = [
            (
                *(self._features, trunk.tokens[:, :length].index_select(0, rows), trunk.end[rows]),
                *(first, inject and inject.rows(rows)),
            )
            for rows, length in groups
            if not begin_alike
        ]
        if begin_alike:
            together = [[group] for group in groups] if chunk else [groups]
            work = [(self._packed, trunk, some, first, inject) for some in together]
        again = chunk and torch.is_grad_enabled()
        parts = [_again(*one) if again else one[0](*one[1:]) for one in work]
        order = torch.cat([rows for rows, _ in groups])
        return torch.cat(parts).index_select(0, order.argsort())

    def _packed(
        self,
        trunk: TextTrunk,
        groups: list[tuple[Int[Tensor, "some"], int]],
        first: int,
        inject: Injection | None,
    ) -> Float[Tensor, "some embed"]:
        """The features of groups of prompts that begin alike, in the groups' order: all tokens are one
        sequence, so that they share the products with the weights.
        """
        shared, added = trunk.shared, 0 if inject is None else inject.added
        tokens, ends, start = [trunk.tokens[0, :shared]], [], shared + added
        for rows, length in groups:
            own = length - shared
            tokens.append(trunk.tokens[:, shared:length].index_select(0, rows).flatten(0, 1))
            firsts = torch.arange(len(rows), device=rows.device) * own + start
            ends.append(firsts + trunk.end[rows] - shared)
            start += len(rows) * own
        x = torch.cat(tokens).unsqueeze(0)
        longest = max(length for _, length in groups) + added
        sizes = tuple((len(rows), length - shared) for rows, length in groups)
        packed = Packed(shared + added, sizes, causal_bias(longest, x))
        out = self.span(x, first, bias=packed, inject=inject, read=torch.cat(ends))
        return self.finish(out[0])

    def _features(
        self,
        tokens: Float[Tensor, "class token width"],
        end: Int[Tensor, "class"],
        first: int,
        inject: Injection | None,
    ) -> Float[Tensor, "class embed"]:
        extra = 0 if inject is None else inject.added
        bias = self._bias(tokens, extra)
        read = (end + extra).unsqueeze(1)
        return self.finish(self.span(tokens, first, bias=bias, inject=inject, read=read)[:, 0])

    def forward(self, ids: Int[Tensor, "class token"]) -> Float[Tensor, "class embed"]:
        """CLIP's text embedding, not normalised."""
        return self.features(self.trunk(ids, self.depth), self.depth)


def alike(same: Bool[Tensor, "prompt token"], end: Int[Tensor, "prompt"]) -> int:
    """The number of first tokens, before any prompt's end, that are the same in all prompts."""
    run = same.all(dim=0).long().cumprod(dim=0).sum()
    return int(torch.minimum(run, end.min()))


def plain_projection(projection: Any, norm: Any) -> tuple[nn.Parameter, Tensor | None]:
    """A projection as a matrix to multiply with from the right, and its bias: of a parameter, a linear layer,
    or nothing, which is the identity.
    """
    if projection is None or isinstance(projection, nn.Identity):
        return nn.Parameter(torch.eye(norm.weight.shape[0]).to(norm.weight)), None
    if isinstance(projection, nn.Linear):
        return nn.Parameter(projection.weight.detach().T.contiguous()), projection.bias
    assert isinstance(projection, nn.Parameter)
    return projection, None


def _again(features: Any, *given: Any) -> Tensor:
    """Features with gradient checkpointing: activations are recomputed for gradients instead of kept."""
    # Nothing here is random, so the state of the generator need not be preserved.
    found: Tensor = checkpoint(features, *given, use_reentrant=False, preserve_rng_state=False)
    return found


def _at(bias: Bias, step: int) -> Tensor | Packed | None:
    return bias[step] if isinstance(bias, list) else bias


def _rows(
    x: Float[Tensor, "batch token width"], read: Int[Tensor, "*batch read"]
) -> Float[Tensor, "batch read width"]:
    if read.ndim == 1:
        return x[:, read]
    return x.gather(1, read.unsqueeze(-1).expand(-1, -1, x.shape[-1]))


def _bias_rows(bias: Tensor | Packed | None, read: Int[Tensor, "*batch read"]) -> Tensor | Packed | None:
    """The rows of a (.., head, query, key) or (query, key) bias for the tokens in ``read``."""
    if isinstance(bias, Packed):
        return bias.reading(read)
    if bias is None or read.ndim == 1:
        return None if bias is None else bias[..., read, :]
    if bias.ndim != 2:
        raise ValueError("reading different tokens in each row needs a bias of shape (query, key)")
    return bias[read].unsqueeze(1)
