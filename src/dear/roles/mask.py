"""The role mask (paper eq. 7 to 9): which heads may carry information between original and attribute
tokens.
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from dear.roles.table import HeadRole, RoleTable

ISOLATED = ("generalization", "other-specialized")


def blocked_edges(
    role: HeadRole, original: int, attributes: tuple[str, ...], each: int
) -> Bool[Tensor, "query key"]:
    """Edges (query, key) that a head of this role blocks, for tokens ordered original, then ``each``
    tokens an attribute.

    Generalization and Other Specialized (eq. 8): original to attribute tokens and back. Core Attribute of
    a (eq. 9): any query to an attribute token that is not a's. Mixed: nothing.
    """
    tokens = original + each * len(attributes)
    is_attribute = torch.arange(tokens) >= original
    if role.role in ISOLATED:
        return is_attribute[:, None] != is_attribute[None, :]
    if role.role == "core":
        own = (torch.arange(tokens) - original).div(each, rounding_mode="floor") == attributes.index(
            str(role.attribute)
        )
        return (is_attribute & ~own).expand(tokens, tokens)
    return torch.zeros(tokens, tokens, dtype=torch.bool)


def role_mask(
    table: RoleTable, layer: int, heads: int, original: int, each: int = 1
) -> Float[Tensor, "head query key"]:
    """The additive mask of a layer: -inf on blocked edges, else 0."""
    blocked = [blocked_edges(role, original, table.attributes, each) for role in table.layer(layer, heads)]
    return torch.zeros(len(blocked), *blocked[0].shape).masked_fill(torch.stack(blocked), float("-inf"))
