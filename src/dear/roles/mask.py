"""The role mask (paper eq. 7 to 9 and supplement B): which heads may carry information between original
and attribute tokens.
"""

from typing import assert_never

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from dear.roles.settings import CoreMask
from dear.roles.table import HeadRole, RoleTable

ISOLATED = ("generalization", "other-specialized")


def blocked_edges(
    role: HeadRole, original: int, attributes: tuple[str, ...], count: int, core_mask: CoreMask = "exclusive"
) -> Bool[Tensor, "query key"]:
    """Edges (query, key) that a head of this role blocks. Tokens are ordered: original tokens, then
    ``count`` tokens of each attribute.

    Generalization and Other Specialized (eq. 8): original to attribute tokens and back. Mixed: nothing.
    Core Attribute of a: any query to an attribute token that is not a's (eq. 9); if ``core_mask`` is
    "exclusive", a token of another attribute does not attend to the image, because we count the head among
    its "non-target heads" (supplement B, which does not define them) [ours], and attends to its own
    attribute instead of a's [ours]: equation 9 leaves it a's tokens and blocks its own.
    """
    tokens = original + count * len(attributes)
    group = (torch.arange(tokens) - original).div(count, rounding_mode="floor").clamp(min=-1)  # -1: original
    is_attribute = group >= 0
    if role.role in ISOLATED:
        return is_attribute[:, None] != is_attribute[None, :]
    if role.role == "core":
        foreign = is_attribute & (group != attributes.index(str(role.attribute)))
        match core_mask:
            case "eq9":
                return foreign.expand(tokens, tokens)
            case "exclusive":
                return torch.where(foreign[:, None], group[:, None] != group, foreign)
            case _:
                assert_never(core_mask)
    return torch.zeros(tokens, tokens, dtype=torch.bool)


def role_mask(
    table: RoleTable,
    layer: int,
    heads: int,
    original: int,
    count: int = 1,
    core_mask: CoreMask = "exclusive",
) -> Float[Tensor, "head query key"]:
    """The additive mask of a layer: -inf on blocked edges, else 0."""
    blocked = [
        blocked_edges(role, original, table.attributes, count, core_mask)
        for role in table.layer(layer, heads)
    ]
    return torch.zeros(len(blocked), *blocked[0].shape).masked_fill(torch.stack(blocked), float("-inf"))
