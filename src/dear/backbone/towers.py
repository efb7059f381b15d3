"""What both towers share: a trunk (frozen layers) and a span (layers that a method changes).

Layers are counted from 1 to ``depth``. ``trunk`` runs layers 1 to J-1, ``span`` runs J to the last. Any J
gives the same features. What a method changes in a span is a `Change`.
"""

import copy
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, ClassVar, Self

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from dear.backbone.attention import PackedSequences, Rotation
from dear.backbone.block import Block
from dear.backbone.change import UNCHANGED, Change
from dear.backbone.names import Access
from dear.errors import SettingsError, WeightsError, first_line, of_memory

SpanBias = (
    Float[Tensor, "*#batch #head token token"]
    | list[Float[Tensor, "*#batch #head token token"]]
    | PackedSequences
    | None
)


def widest(module: nn.Module) -> int:
    """The width of the widest linear layer in a module."""
    return max((part.out_features for part in module.modules() if isinstance(part, nn.Linear)), default=0)


class Opaque(nn.Module):
    """A network as the only block of a tower: its embedding of an input is the only token of the output. It
    is always in evaluation mode: batch normalization uses the statistics stored with the weights.
    """

    def __init__(self, network: nn.Module, title: str, embed_dim: int) -> None:
        super().__init__()
        self.network, self.title, self.embed_dim = network, title, embed_dim

    def train(self, mode: bool = True) -> Self:
        del mode
        return super().train(False)

    def forward(self, inputs: Tensor) -> Float[Tensor, "batch 1 embed"]:
        """The embeddings, without the tokens that some networks return too. Raises WeightsError if there are
        none: a configuration may ask for what its classes cannot compute.
        """
        try:
            with outside_autocast(inputs.device):
                output = self.network(inputs)
        except Exception as error:
            if of_memory(error):
                raise
            raise WeightsError(
                f"the {self.title} cannot be computed ({first_line(error)}): its configuration does not "
                "describe a working model."
            ) from error
        embeddings: Tensor = output[0] if isinstance(output, tuple) else output
        if embeddings.ndim != 2 or embeddings.shape[1] != self.embed_dim:
            raise WeightsError(
                f"the {self.title} gives {tuple(embeddings.shape[1:])} for an input, not an embedding of "
                f"{self.embed_dim} numbers: its configuration names no pooling that fits."
            )
        return embeddings.unsqueeze(1)


class Tower(nn.Module):
    """A stack of blocks with a final LayerNorm and projection, which may have a bias."""

    access: ClassVar[Access] = "layers"
    EMBEDDINGS: ClassVar[tuple[str, ...]] = ()
    """Names of the modules and parameters that embed the input."""
    blocks: nn.ModuleList
    projection_bias: Tensor | None

    def __init__(
        self,
        blocks: Sequence[Block | Opaque],
        ln_final: nn.Module,
        projection: Tensor,
        bias: Tensor | None = None,
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
        """The block of a layer, counted from 1. Raises WeightsError if the tower gives features only."""
        block = self.blocks[layer - 1]
        if isinstance(block, Opaque):
            raise WeightsError(
                f"this backbone's {block.title} gives features only, no layers or attention heads: "
                "docs/models.md lists those that give them, such as ViT-B-16."
            )
        assert isinstance(block, Block)
        return block

    def trainable_copy(self, first: int) -> Self:
        """A trainable copy of layers ``first`` to the last, the final LayerNorm and the projection: a tower
        whose layer 1 is that layer. It has no embeddings: its inputs are trunk outputs. Raises WeightsError
        if the tower gives features only.
        """
        self.block(first)
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

    def rotations(self, change: Change = UNCHANGED) -> Rotation | None:
        """The rotation of queries and keys, added ones too; None without a rotary embedding."""
        del change
        return None

    def span(
        self,
        x: Float[Tensor, "batch token width"],
        first: int,
        change: Change = UNCHANGED,
        *,
        bias: SpanBias = None,
        read: Int[Tensor, "*batch read"] | None = None,
    ) -> Float[Tensor, "batch read width"]:
        """Layers ``first`` to the last with a change; the last only at tokens in ``read``.

        ``bias`` covers the tokens that the change adds too; a list has one per layer of the span. ``read``
        holds positions among all these tokens, the same for the whole batch (1-D) or one row per item (2-D);
        None reads all of them. If ``first`` is past the last layer, the tokens are read unchanged: raises
        SettingsError for a change, which would have no effect.
        """
        if first > self.depth:
            if change is not UNCHANGED:
                raise SettingsError(
                    f"{type(change).__name__} has no effect from layer {first} on, since the tower has "
                    f"{self.depth}: a method sets image_from and text_from to the first layer that it "
                    "changes."
                )
            return x if read is None else _rows(x, read)
        rotation, last = self.rotations(change), self.depth - first
        for step in range(last):
            block, projection, layer_bias = self.block(first + step), change.update(step), _at(bias, step)
            if step > 0:
                x = block(change.anchor(x, step), layer_bias, None, rotation, projection)
                continue
            x, projected = change.enter_through(x, partial(block.project, projection=projection))
            x = block.forward_projected(x, projected, layer_bias, rotation)
        x = change.anchor(x, last) if last else change.enter(x)
        bias, queries = _at(bias, last), None
        if read is not None:
            bias, queries = _bias_rows(bias, read), _rows(x, read)
            rotation = None if rotation is None else rotation.select_queries(read)
        out: Tensor = self.block(self.depth)(x, bias, queries, rotation, change.update(last))
        return out

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


def as_matrix(projection: Any, norm: Any) -> tuple[nn.Parameter, Tensor | None]:
    """The matrix of a projection, to multiply with from the right, and its bias. A projection is a parameter
    or a linear layer; None stands for the identity.
    """
    if projection is None or isinstance(projection, nn.Identity):
        return nn.Parameter(torch.eye(norm.weight.shape[0]).to(norm.weight)), None
    if isinstance(projection, nn.Linear):
        return nn.Parameter(projection.weight.detach().T.contiguous()), projection.bias
    assert isinstance(projection, nn.Parameter)
    return projection, None


def _at(bias: SpanBias, step: int) -> Tensor | PackedSequences | None:
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
