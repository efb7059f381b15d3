"""The transformer block of both towers, sharing its weights with a block of open_clip or timm.

Their blocks differ in names and in where they normalize, not in what they compute:
out = x + ls_1(out_proj(ln_inner(heads(ln_1(x))))), then out + ls_2(mlp(ln_2(out))).
"""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from dear.backbone.attention import Attend, PackedSequences, Rotation, attend
from dear.backbone.casts import CastLinear, CastOnce
from dear.backbone.change import Projection, frozen_projection
from dear.backbone.openclip import EVA_BLOCK_CLASS, EVA_POST_NORM_BLOCK_CLASS, is_instance

QueryKeyValue = tuple[
    Float[Tensor, "batch head query dim"],
    Float[Tensor, "batch head token dim"],
    Float[Tensor, "batch head token dim"],
]
Bias = Float[Tensor, "*#batch #head #query token"] | PackedSequences | None


class Block(nn.Module):
    """Residual block: attention, then MLP, normalized before or after. It shares the tensors of the source
    block, but joins the projections of a source that has three.

    Source: open_clip ``ResidualAttentionBlock``; timm ``Block``, ``EvaBlock``, ``EvaBlockPostNorm``.
    :mod:`dear.backbone.loading.convert` refuses blocks that differ from these.

    Attributes:
        in_proj_weight, in_proj_bias: the projection to queries, keys and values, in that order.
        ls_1, ls_2: applied to the outputs of attention and MLP before they are added: a scale or, in blocks
            that normalize last, a LayerNorm.
        ln_inner: a LayerNorm of the heads' outputs before their projection, or the identity.
        ln_query, ln_key: LayerNorms of each head's queries and keys, or the identity.
    """

    in_proj_weight: Tensor
    in_proj_bias: Tensor
    out_proj: nn.Linear

    def __init__(self, source: Any) -> None:
        super().__init__()
        attention, identity = source.attn, nn.Identity()
        is_timm = hasattr(source, "norm1")
        self.heads: int = attention.num_heads
        if not is_timm:
            self.ln_1, self.ln_2, self.ls_1, self.ls_2 = source.ln_1, source.ln_2, source.ls_1, source.ls_2
            self.in_proj_weight, self.in_proj_bias = attention.in_proj_weight, attention.in_proj_bias
        else:
            self.ln_1, self.ln_2 = source.norm1, source.norm2
            if is_instance(source, EVA_POST_NORM_BLOCK_CLASS):
                self.ln_1, self.ln_2, self.ls_1, self.ls_2 = identity, identity, self.ln_1, self.ln_2
            elif is_instance(source, EVA_BLOCK_CLASS):
                self.ls_1, self.ls_2 = _scale(source.gamma_1), _scale(source.gamma_2)
            else:
                self.ls_1, self.ls_2 = source.ls1, source.ls2
            self.in_proj_weight, self.in_proj_bias = _joint_projection(attention)
        self.out_proj = attention.proj if is_timm else attention.out_proj
        self.mlp = source.mlp
        self.ln_inner = attention.norm if is_timm else identity
        self.ln_query = attention.q_norm if is_timm else identity
        self.ln_key = attention.k_norm if is_timm else identity
        self.attend: Attend = attend
        self.cast_once = CastOnce()
        for part in (self.out_proj, self.mlp):
            CastLinear.adopt(part)

    def forward(
        self,
        tokens: Float[Tensor, "batch token width"],
        bias: Bias = None,
        read: Float[Tensor, "batch query width"] | None = None,
        rotation: Rotation | None = None,
        projection: Projection = frozen_projection,
    ) -> Float[Tensor, "batch query width"]:
        """The block's output at the tokens in ``read`` (all tokens if None), which are rows of ``tokens``.

        The last layer of a tower needs its output at only a few tokens. Queries and MLP are then computed for
        those tokens alone, with the same result. ``bias`` and the queries of ``rotation``
        have one row per token in ``read``. ``projection`` projects to queries, keys and values.
        """
        heads = self.head_outputs(tokens, bias, read, rotation, projection)
        return self._add_residuals(tokens if read is None else read, heads)

    def forward_projected(
        self,
        tokens: Float[Tensor, "batch token width"],
        projected: Float[Tensor, "batch token three_widths"],
        bias: Bias = None,
        rotation: Rotation | None = None,
    ) -> Float[Tensor, "batch token width"]:
        """The block's output from the tokens and what ``project`` returned for them."""
        query, key, value = projected.chunk(3, dim=-1)
        query, key, value = self._by_head(query, key, value, rotation)
        return self._add_residuals(tokens, self._attend(query, key, value, bias))

    def project(
        self, tokens: Float[Tensor, "batch token width"], projection: Projection = frozen_projection
    ) -> Float[Tensor, "batch token three_widths"]:
        """Queries, keys and values, concatenated. Each row is computed from its own token alone."""
        return projection(self.ln_1(tokens), *self._weights(projection), 0)

    def _weights(self, projection: Projection) -> tuple[Tensor, Tensor]:
        """Weight and bias of the projection: cast only if it takes them as they are."""
        if projection is not frozen_projection:
            return self.in_proj_weight, self.in_proj_bias
        weight, bias = self.cast_once(self.in_proj_weight, self.in_proj_bias)
        assert bias is not None
        return weight, bias

    def _attend(self, query: Tensor, key: Tensor, value: Tensor, bias: Bias) -> Tensor:
        if isinstance(bias, PackedSequences):
            return bias.attend(query, key, value, self.attend)
        return self.attend(query, key, value, bias)

    def _add_residuals(
        self, out: Float[Tensor, "batch query width"], heads: Float[Tensor, "batch head query dim"]
    ) -> Float[Tensor, "batch query width"]:
        out = out + self.attention_update(heads)
        return out + self.mlp_update(out)

    def attention_update(
        self, heads: Float[Tensor, "batch head query dim"]
    ) -> Float[Tensor, "batch query width"]:
        """What attention adds to the tokens, given the heads' outputs."""
        added: Tensor = self.ls_1(self.out_proj(self.ln_inner(_merge(heads))))
        return added

    def mlp_update(self, out: Float[Tensor, "batch query width"]) -> Float[Tensor, "batch query width"]:
        """What the MLP adds to the tokens, given the tokens after attention."""
        added: Tensor = self.ls_2(self.mlp(self.ln_2(out)))
        return added

    def head_outputs(
        self,
        tokens: Float[Tensor, "batch token width"],
        bias: Bias = None,
        read: Float[Tensor, "batch query width"] | None = None,
        rotation: Rotation | None = None,
        projection: Projection = frozen_projection,
    ) -> Float[Tensor, "batch head query dim"]:
        """Each head's output before the output projection."""
        query, key, value = self.query_key_value(tokens, read, rotation, projection)
        return self._attend(query, key, value, bias)

    def query_key_value(
        self,
        tokens: Float[Tensor, "batch token width"],
        read: Float[Tensor, "batch query width"] | None = None,
        rotation: Rotation | None = None,
        projection: Projection = frozen_projection,
    ) -> QueryKeyValue:
        """Queries of the tokens in ``read``, keys and values of all tokens."""
        width = tokens.shape[-1]
        if read is None:
            query, key, value = self.project(tokens, projection).chunk(3, dim=-1)
        else:
            weight, bias = self._weights(projection)
            query = projection(self.ln_1(read), weight[:width], bias[:width], 0)
            keys_values = projection(self.ln_1(tokens), weight[width:], bias[width:], 1)
            key, value = keys_values.chunk(2, dim=-1)
        return self._by_head(query, key, value, rotation)

    def _by_head(self, query: Tensor, key: Tensor, value: Tensor, rotation: Rotation | None) -> QueryKeyValue:
        """All three split by head, with queries and keys normalized and rotated."""
        query, key, value = (_split(x, self.heads) for x in (query, key, value))
        query, key = self.ln_query(query), self.ln_key(key)
        return (query, key, value) if rotation is None else (*rotation(query, key), value)


def _split(x: Float[Tensor, "batch token width"], heads: int) -> Float[Tensor, "batch head token dim"]:
    batch, tokens, width = x.shape
    return x.view(batch, tokens, heads, width // heads).transpose(1, 2)


def _merge(x: Float[Tensor, "batch head token dim"]) -> Float[Tensor, "batch token width"]:
    return x.transpose(1, 2).flatten(2)


class _Scale(nn.Module):
    """A factor for each dimension (LayerScale)."""

    def __init__(self, gamma: Tensor) -> None:
        super().__init__()
        self.gamma = gamma

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gamma


def _scale(gamma: Tensor | None) -> nn.Module:
    return nn.Identity() if gamma is None else _Scale(gamma)


def _joint_projection(attention: Any) -> tuple[Tensor, Tensor]:
    """Weight and bias of queries, keys and values. Three weights are joined; a missing bias is zero."""
    if attention.qkv is None:
        layers = (attention.q_proj, attention.k_proj, attention.v_proj)
        weight = _frozen(torch.cat([layer.weight.detach() for layer in layers]))
        biases = [layer.bias for layer in layers]
    else:
        weight, biases = attention.qkv.weight, [attention.qkv.bias]
        if getattr(attention, "q_bias", None) is not None:
            biases = [attention.q_bias, attention.k_bias, attention.v_bias]
    if len(biases) == 1 and biases[0] is not None:
        return weight, biases[0]
    rows = len(weight) // len(biases)
    return weight, _frozen(
        torch.cat([weight.new_zeros(rows) if bias is None else bias.detach() for bias in biases])
    )


def _frozen(tensor: Tensor) -> nn.Parameter:
    return nn.Parameter(tensor.detach(), requires_grad=False)
