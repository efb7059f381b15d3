"""How an image embedding is read in a tower that does not read it at a class token: pooling.

Every tower has a token 0 whose final LayerNorm and projection are the image embedding. Where a tower has no
class token, or has one that it does not read, that token is computed after the last layer from the image
tokens alone: their mean, or attention of a learned query to them. Learned tokens are not pooled. They reach
the embedding through the image tokens that attend to them. Read by itself, a learned token is pooled as if
it were the only one, so that both kinds of vectors enter the final LayerNorm in the same way [ours].
"""

from abc import abstractmethod
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import linear

from dear.backbone.attention import attend, attention_weights


class Pool(nn.Module):
    """Pools the last layer's image tokens, without the first ``skip`` of them.

    ``norm`` is applied to each token before pooling.
    """

    def __init__(self, norm: nn.Module, skip: int, width: int) -> None:
        super().__init__()
        self.norm, self.skip, self.width = norm, skip, width

    @property
    @abstractmethod
    def pool_heads(self) -> int:
        """The number of the pool's heads, each of which is a linear map of the weighted tokens."""

    @abstractmethod
    def forward(self, tokens: Float[Tensor, "batch token width"]) -> Float[Tensor, "batch width"]:
        """The pooled token."""

    @abstractmethod
    def alone(self, tokens: Float[Tensor, "batch token width"]) -> Float[Tensor, "batch token width"]:
        """Each token pooled as if it were the only one."""

    @abstractmethod
    def weights(self, tokens: Float[Tensor, "batch token width"]) -> Float[Tensor, "batch pool_head token"]:
        """The weight of each token in each head of the pool; zero for those left out."""

    @abstractmethod
    def maps(self) -> Float[Tensor, "pool_head width width"]:
        """The linear maps of a normalized token, by head of the pool: the pooled token is the sum over these
        heads of the weighted sum of tokens @ map, plus ``constant``.
        """

    @abstractmethod
    def constant(self) -> Float[Tensor, "width"]:
        """The part of the pooled token that does not depend on the tokens."""


class MeanPool(Pool):
    """The mean of the tokens."""

    @property
    def pool_heads(self) -> int:
        return 1

    def forward(self, tokens: Float[Tensor, "batch token width"]) -> Float[Tensor, "batch width"]:
        normed: Tensor = self.norm(tokens[:, self.skip :])
        return normed.mean(dim=1)

    def alone(self, tokens: Float[Tensor, "batch token width"]) -> Float[Tensor, "batch token width"]:
        normed: Tensor = self.norm(tokens)
        return normed

    def weights(self, tokens: Float[Tensor, "batch token width"]) -> Float[Tensor, "batch pool_head token"]:
        weights = tokens.new_zeros(len(tokens), 1, tokens.shape[1])
        weights[:, :, self.skip :] = 1 / (tokens.shape[1] - self.skip)
        return weights

    def maps(self) -> Float[Tensor, "pool_head width width"]:
        return torch.eye(self.width).unsqueeze(0)

    def constant(self) -> Float[Tensor, "width"]:
        return torch.zeros(self.width)


class AttentionPool(Pool):
    """Attention of a learned query to the tokens, by several heads (the MAP head of SigLIP).

    Source: timm ``AttentionPoolLatent``; its last residual MLP is the tower's ``ln_final``, a
    `ResidualMlp`.
    """

    def __init__(self, norm: nn.Module, skip: int, width: int, source: Any) -> None:
        super().__init__(norm, skip, width)
        self.heads = int(source.num_heads)
        self.latent, self.query, self.key_value = source.latent, source.q, source.kv
        self.ln_query, self.ln_key, self.out_proj = source.q_norm, source.k_norm, source.proj

    @property
    def pool_heads(self) -> int:
        return self.heads

    def forward(self, tokens: Float[Tensor, "batch token width"]) -> Float[Tensor, "batch width"]:
        query, key, value = self._projected(tokens)
        pooled: Tensor = self.out_proj(attend(query, key, value).transpose(1, 2).flatten(2))
        return pooled[:, 0]

    def alone(self, tokens: Float[Tensor, "batch token width"]) -> Float[Tensor, "batch token width"]:
        weight, bias = self._value()
        pooled: Tensor = self.out_proj(linear(self.norm(tokens), weight, bias))
        return pooled

    def weights(self, tokens: Float[Tensor, "batch token width"]) -> Float[Tensor, "batch pool_head token"]:
        query, key, _ = self._projected(tokens)
        weights = attention_weights(query, key)[:, :, 0]
        return torch.cat([weights.new_zeros(*weights.shape[:2], self.skip), weights], dim=-1)

    def maps(self) -> Float[Tensor, "pool_head width width"]:
        weight, _ = self._value()
        values = weight.unflatten(0, (self.heads, -1))  # pool_head dim width
        outputs = self.out_proj.weight.unflatten(1, (self.heads, -1))  # width pool_head dim
        return torch.einsum("vdi,ovd->vio", values, outputs)

    def constant(self) -> Float[Tensor, "width"]:
        pooled: Tensor = self.out_proj(self._value()[1])
        return pooled

    def _value(self) -> tuple[Tensor, Tensor]:
        weight = self.key_value.weight[self.width :]
        bias = self.key_value.bias
        return weight, weight.new_zeros(len(weight)) if bias is None else bias[self.width :]

    def _projected(self, tokens: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        key, value = self.key_value(self.norm(tokens[:, self.skip :])).chunk(2, dim=-1)
        query = self.query(self.latent).expand(tokens.shape[0], -1, -1)
        query, key, value = (x.unflatten(-1, (self.heads, -1)).transpose(1, 2) for x in (query, key, value))
        return self.ln_query(query), self.ln_key(key), value


class ResidualMlp(nn.Module):
    """x + mlp(norm(x)): the end of an attention pool."""

    def __init__(self, norm: nn.Module, mlp: nn.Module) -> None:
        super().__init__()
        self.norm, self.mlp = norm, mlp

    def forward(self, x: Float[Tensor, "*any width"]) -> Float[Tensor, "*any width"]:
        return x + self.update(x)

    def update(self, x: Float[Tensor, "*any width"]) -> Float[Tensor, "*any width"]:
        """What the MLP adds."""
        update: Tensor = self.mlp(self.norm(x))
        return update
