"""Loss terms shared by methods."""

from jaxtyping import Float
from torch import Tensor


def cosine_distance(one: Float[Tensor, "row embed"], other: Float[Tensor, "row embed"]) -> Float[Tensor, ""]:
    """Mean of 1 - cosine over rows of unit vectors: one half of L_reg."""
    return 1 - (one * other).sum(dim=-1).mean()
