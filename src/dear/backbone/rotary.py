"""Rotary position embeddings of queries and keys, as in EVA-02 and Perception Encoder."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor


@dataclass(frozen=True)
class Turn:
    """The rotations of queries and of keys by the places of their tokens: sines, then cosines, of each of a
    head's dimensions. A token without a place (the class token, learned tokens) is not rotated.

    Source: Su et al. 2021 (RoFormer), eq. 34, in the interleaved form of timm's ``apply_rot_embed``.
    """

    query: Float[Tensor, "query two_dims"]
    key: Float[Tensor, "token two_dims"]

    def __call__(
        self, query: Float[Tensor, "batch head query dim"], key: Float[Tensor, "batch head token dim"]
    ) -> tuple[Float[Tensor, "batch head query dim"], Float[Tensor, "batch head token dim"]]:
        """Both rotated."""
        return rotated(query, self.query), rotated(key, self.key)

    def rows(self, read: Int[Tensor, "read"]) -> "Turn":
        """The same for the queries of the tokens in ``read`` alone."""
        return Turn(self.query[read], self.key)


def rotated(
    x: Float[Tensor, "batch head token dim"], table: Float[Tensor, "token two_dims"]
) -> Float[Tensor, "batch head token dim"]:
    """Each pair of neighbouring dimensions rotated by its token's angle."""
    sine, cosine = table.to(x.dtype).chunk(2, dim=-1)
    quarter = torch.stack([-x[..., 1::2], x[..., ::2]], dim=-1).flatten(-2)
    return x * cosine + quarter * sine


def unturned(count: int, like: Float[Tensor, "token two_dims"]) -> Float[Tensor, "count two_dims"]:
    """The rows of tokens that are not rotated: sines 0, cosines 1."""
    half = like.shape[-1] // 2
    return torch.cat([like.new_zeros(count, half), like.new_ones(count, half)], dim=-1)
