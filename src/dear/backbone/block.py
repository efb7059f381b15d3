"""The transformer block of both towers, sharing its weights with a block of open_clip or timm."""

from typing import Any

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import linear

from dear.backbone.attention import Attend, Packed, attend
from dear.backbone.parts import parts_of
from dear.backbone.rotary import Turn


class Block(nn.Module):
    """Residual block: attention, then MLP, normalised before or after (:mod:`dear.backbone.parts`). The
    tensors are the source block's own, but for projections that the source keeps in three parts.

    Source: open_clip ``ResidualAttentionBlock``; timm ``Block``, ``EvaBlock``, ``EvaBlockPostNorm``. Built by
    :mod:`dear.backbone.convert`, which refuses blocks that differ.
    """

    in_proj_weight: Tensor
    in_proj_bias: Tensor

    def __init__(self, source: Any) -> None:
        super().__init__()
        parts = parts_of(source)
        self.heads: int = parts.heads
        self.ln_1, self.ln_2 = parts.ln_1, parts.ln_2
        self.ls_1, self.ls_2 = parts.ls_1, parts.ls_2
        self.in_proj_weight, self.in_proj_bias = parts.in_proj_weight, parts.in_proj_bias
        self.out_proj: nn.Linear = parts.out_proj
        self.mlp = parts.mlp
        self.ln_inner, self.ln_query, self.ln_key = parts.ln_inner, parts.ln_query, parts.ln_key
        self.attend: Attend = attend

    def forward(
        self,
        tokens: Float[Tensor, "batch token width"],
        bias: Float[Tensor, "*#batch #head #query token"] | Packed | None = None,
        read: Float[Tensor, "batch query width"] | None = None,
        turn: Turn | None = None,
    ) -> Float[Tensor, "batch query width"]:
        """The block's output at the tokens in ``read`` (all tokens if None), which are rows of ``tokens``.

        The last layer of a tower needs its output at only a few tokens: queries and MLP are then computed for
        those alone, with the same result. ``bias`` and the queries of ``turn`` (the rotation, if the tower
        has one) have one row per token in ``read``.
        """
        return self._updated(tokens if read is None else read, self.head_outputs(tokens, bias, read, turn))

    def onwards(
        self,
        tokens: Float[Tensor, "batch token width"],
        projected: Float[Tensor, "batch token three_widths"],
        bias: Float[Tensor, "*#batch #head #token token"] | Packed | None = None,
        turn: Turn | None = None,
    ) -> Float[Tensor, "batch token width"]:
        """The block's output, given the result of ``project`` for the tokens."""
        query, key, value = projected.chunk(3, dim=-1)
        query, key, value = self._ready(query, key, value, turn)
        return self._updated(tokens, self._attended(query, key, value, bias))

    def project(
        self, tokens: Float[Tensor, "batch token width"]
    ) -> Float[Tensor, "batch token three_widths"]:
        """Queries, keys and values, concatenated; each token's depend on that token alone."""
        return linear(self.ln_1(tokens), self.in_proj_weight, self.in_proj_bias)

    def _attended(self, query: Tensor, key: Tensor, value: Tensor, bias: Tensor | Packed | None) -> Tensor:
        if isinstance(bias, Packed):
            return bias.attend(query, key, value, self.attend)
        return self.attend(query, key, value, bias)

    def _updated(
        self, out: Float[Tensor, "batch query width"], heads: Float[Tensor, "batch head query dim"]
    ) -> Float[Tensor, "batch query width"]:
        out = out + self.attended(heads)
        return out + self.worked(out)

    def attended(self, heads: Float[Tensor, "batch head query dim"]) -> Float[Tensor, "batch query width"]:
        """What attention adds to the tokens, given the heads' outputs."""
        added: Tensor = self.ls_1(self.out_proj(self.ln_inner(_merge(heads))))
        return added

    def worked(self, out: Float[Tensor, "batch query width"]) -> Float[Tensor, "batch query width"]:
        """What the MLP adds to the tokens, given them with what attention added."""
        added: Tensor = self.ls_2(self.mlp(self.ln_2(out)))
        return added

    def head_outputs(
        self,
        tokens: Float[Tensor, "batch token width"],
        bias: Float[Tensor, "*#batch #head #query token"] | Packed | None = None,
        read: Float[Tensor, "batch query width"] | None = None,
        turn: Turn | None = None,
    ) -> Float[Tensor, "batch head query dim"]:
        """Each head's output before the output projection."""
        query, key, value = self.query_key_value(tokens, read, turn)
        return self._attended(query, key, value, bias)

    def query_key_value(
        self,
        tokens: Float[Tensor, "batch token width"],
        read: Float[Tensor, "batch query width"] | None = None,
        turn: Turn | None = None,
    ) -> tuple[
        Float[Tensor, "batch head query dim"],
        Float[Tensor, "batch head token dim"],
        Float[Tensor, "batch head token dim"],
    ]:
        """Queries of the tokens in ``read``, keys and values of all tokens."""
        width = tokens.shape[-1]
        weight, bias = self.in_proj_weight, self.in_proj_bias
        if read is None:
            query, key, value = self.project(tokens).chunk(3, dim=-1)
        else:
            query = linear(self.ln_1(read), weight[:width], bias[:width])
            key, value = linear(self.ln_1(tokens), weight[width:], bias[width:]).chunk(2, dim=-1)
        return self._ready(query, key, value, turn)

    def _ready(
        self, query: Tensor, key: Tensor, value: Tensor, turn: Turn | None
    ) -> tuple[
        Float[Tensor, "batch head query dim"],
        Float[Tensor, "batch head token dim"],
        Float[Tensor, "batch head token dim"],
    ]:
        """By head, queries and keys normalised and rotated."""
        split = _split(query, self.heads), _split(key, self.heads), _split(value, self.heads)
        query, key, value = self.ln_query(split[0]), self.ln_key(split[1]), split[2]
        return (query, key, value) if turn is None else (*turn(query, key), value)


def _split(x: Float[Tensor, "batch token width"], heads: int) -> Float[Tensor, "batch head token dim"]:
    batch, tokens, width = x.shape
    return x.view(batch, tokens, heads, width // heads).transpose(1, 2)


def _merge(x: Float[Tensor, "batch head token dim"]) -> Float[Tensor, "batch token width"]:
    return x.transpose(1, 2).flatten(2)
