"""Loss terms that methods share (paper eq. 12 to 16)."""

from jaxtyping import Float
from torch import Tensor

from dear.methods.settings import FusionLoss


def cosine_distance(one: Float[Tensor, "row embed"], other: Float[Tensor, "row embed"]) -> Float[Tensor, ""]:
    """Mean of 1 - cosine over rows of unit vectors: one half of L_reg."""
    return 1 - (one * other).sum(dim=-1).mean()


def fusion_loss(alpha_cls: Float[Tensor, ""], form: FusionLoss) -> Float[Tensor, ""]:
    """Rewards weight on the class feature. The paper's exact form is not known to us: 1 - alpha ("linear")
    or -log alpha ("log").
    """
    return 1 - alpha_cls if form == "linear" else -alpha_cls.log()
