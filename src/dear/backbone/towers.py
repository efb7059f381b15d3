"""What both towers share: a trunk (frozen layers) and a span (layers that a method changes).

Layers are counted from 1 to ``depth``. ``trunk`` runs layers 1 to J-1, ``span`` runs J to the last. Any J
gives the same features. Learned tokens enter a span through an `Injection`, whatever the method.
"""

import copy
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar, Self

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from dear.backbone.attention import PackedSequences, Rotation
from dear.backbone.block import Block
from dear.backbone.choice import Access
from dear.backbone.injection import Injection
from dear.backbone.low_rank import LowRank

Bias = (
    Float[Tensor, "*#batch #head token token"]
    | list[Float[Tensor, "*#batch #head token token"]]
    | PackedSequences
    | None
)


def widest(module: nn.Module) -> int:
    """The width of the widest linear layer in a module."""
    return max((part.out_features for part in module.modules() if isinstance(part, nn.Linear)), default=0)


class Tower(nn.Module):
    """A stack of blocks with a final LayerNorm and projection, which may have a bias."""

    access: ClassVar[Access] = "layers"
    EMBEDDINGS: ClassVar[tuple[str, ...]] = ()
    """Names of the modules and parameters that embed the input."""
    blocks: nn.ModuleList
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
    def widest(self) -> int:
        """The width of the widest linear layer: of the MLPs, as a rule."""
        return widest(self.blocks)

    @property
    def embed_dim(self) -> int:
        return int(self.projection.shape[1])

    def block(self, layer: int) -> Block:
        """The block of a layer, counted from 1."""
        block = self.blocks[layer - 1]
        assert isinstance(block, Block)
        return block

    def trainable_copy(self, first: int) -> Self:
        """A trainable copy of layers ``first`` to the last, the final LayerNorm and the projection: a tower
        whose layer 1 is that layer. It has no embeddings: its inputs are trunk outputs.
        """
        frozen = [*self.blocks[: first - 1], *(getattr(self, name) for name in self.EMBEDDINGS)]
        tower = copy.deepcopy(self, {id(part): part for part in frozen})  # shared, not copied
        tower.blocks = tower.blocks[first - 1 :]
        for name in self.EMBEDDINGS:
            setattr(tower, name, None)
        return tower.requires_grad_(True)

    def layers(
        self, x: Float[Tensor, "batch token width"], first: int, last: int, bias: Tensor | None = None
    ) -> Float[Tensor, "batch token width"]:
        """Layers ``first`` to ``last`` (counted from 1, inclusive)."""
        rotation = self.rotations()
        for block in self.blocks[first - 1 : last]:
            x = block(x, bias, rotation=rotation)
        return x

    def rotations(self, inject: Injection | None = None) -> Rotation | None:
        """The rotation of queries and keys, injected ones too; None without a rotary embedding."""
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
        updates: LowRank | None = None,
    ) -> Float[Tensor, "batch read width"]:
        """Layers ``first`` to the last, with learned tokens injected and weights updated; the last only at
        tokens in ``read``.

        ``bias`` covers the tokens after injection; a list has one per layer of the span. ``read`` holds token
        positions after injection, the same for the whole batch (1-D) or one row per item (2-D); None reads
        all of them. If ``first`` is past the last layer, the tokens are read unchanged.
        """
        rotation, layers_done = self.rotations(inject), 0
        if inject is not None:
            if first < self.depth and updates is None:
                x, layers_done = self._enter(x, first, inject, _at(bias, 0), rotation), 1
            else:
                x = inject.enter(x)
        for step in range(layers_done, self.depth - first):
            if inject is not None:
                x = inject.anchor(x, step)
            update = updates and updates.at(step)
            x = self.blocks[first + step - 1](x, _at(bias, step), rotation=rotation, update=update)
        if first > self.depth:
            return x if read is None else _rows(x, read)
        if inject is not None and first < self.depth:
            x = inject.anchor(x, self.depth - first)
        bias = _at(bias, self.depth - first)
        queries = None
        if read is not None:
            bias, queries = _bias_rows(bias, read), _rows(x, read)
            rotation = None if rotation is None else rotation.select_queries(read)
        update = updates and updates.at(self.depth - first)
        out: Tensor = self.blocks[-1](x, bias, queries, rotation, update)
        return out

    def _enter(
        self,
        x: Float[Tensor, "batch token width"],
        layer: int,
        inject: Injection,
        bias: Tensor | PackedSequences | None,
        rotation: Rotation | None,
    ) -> Float[Tensor, "batch longer width"]:
        """The layer at which tokens are injected. Their queries, keys and values are computed apart from the
        others and once for the batch, so that no gradient flows through those of a frozen ``x``.
        """
        block, raw = self.block(layer), inject.raw(x)
        projected = inject.put(block.project(x), block.project(raw))
        return block.forward_projected(inject.put(x, raw), projected, bias, rotation)

    def finish(
        self, x: Float[Tensor, "*any width"], projection: Float[Tensor, "width embed"] | None = None
    ) -> Float[Tensor, "*any embed"]:
        """Final LayerNorm and projection into the joint space, not normalized. ``projection`` replaces the
        tower's matrix, but not its bias.
        """
        return self.projected(self.ln_final(x), self.projection if projection is None else projection)

    def projected(
        self, x: Float[Tensor, "*any width"], projection: Float[Tensor, "width embed"]
    ) -> Float[Tensor, "*any embed"]:
        """The projection alone, in the dtype of the weights under autocast too: rounding the features would
        change norms and cosines by more than all earlier layers do, and the product is cheap.
        """
        with outside_autocast(x.device):
            embedded = x.to(projection.dtype) @ projection
        return embedded if self.projection_bias is None else embedded + self.projection_bias


def outside_autocast(device: torch.device) -> AbstractContextManager[Any]:
    """A context without autocast on a device: products have the dtype of their factors."""
    kind = device.type
    if torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind):  # not on the meta device
        return torch.autocast(kind, enabled=False)
    return nullcontext()  # not a context that changes nothing: an exported graph would keep it


def plain_projection(projection: Any, norm: Any) -> tuple[nn.Parameter, Tensor | None]:
    """The matrix of a projection, to multiply with from the right, and its bias. A projection is a parameter
    or a linear layer; None stands for the identity.
    """
    if projection is None or isinstance(projection, nn.Identity):
        return nn.Parameter(torch.eye(norm.weight.shape[0]).to(norm.weight)), None
    if isinstance(projection, nn.Linear):
        return nn.Parameter(projection.weight.detach().T.contiguous()), projection.bias
    assert isinstance(projection, nn.Parameter)
    return projection, None


def _at(bias: Bias, step: int) -> Tensor | PackedSequences | None:
    return bias[step] if isinstance(bias, list) else bias


def _rows(
    x: Float[Tensor, "batch token width"], read: Int[Tensor, "*batch read"]
) -> Float[Tensor, "batch read width"]:
    if read.ndim == 1:
        return x[:, read]
    return x.gather(1, read.unsqueeze(-1).expand(-1, -1, x.shape[-1]))


def _bias_rows(
    bias: Tensor | PackedSequences | None, read: Int[Tensor, "*batch read"]
) -> Tensor | PackedSequences | None:
    """The rows of a (.., head, query, key) or (query, key) bias for the tokens in ``read``."""
    if isinstance(bias, PackedSequences):
        return bias.select_queries(read)
    if bias is None or read.ndim == 1:
        return None if bias is None else bias[..., read, :]
    if bias.ndim != 2:
        raise ValueError("reading different tokens in each row needs a bias of shape (query, key)")
    return bias[read].unsqueeze(1)
