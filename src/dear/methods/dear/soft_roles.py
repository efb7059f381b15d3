"""Roles learned softly [ours, not in the paper]: gates in (0, 1) in place of the role mask's open and blocked
edges, starting from the role table.
"""

import math
from collections.abc import Iterable

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import logsigmoid, pad

from dear.roles.mask import blocked_edges
from dear.roles.settings import CoreMask
from dear.roles.table import RoleTable


def initial_gates(
    table: RoleTable, layers: Iterable[int], heads: int, core_mask: CoreMask, opening: float
) -> Float[Tensor, "layer head edge"]:
    """theta, such that sigmoid(theta) is ``opening`` where the table opens an edge, else 1 - ``opening``.

    Edges lead from a group of queries to a group of keys: the original tokens, and the tokens of each
    attribute. They are in the order of queries, then keys, without the first: original tokens attend to one
    another in every role.
    """
    # With one token a group, the edges of groups are those of tokens.
    blocked = torch.stack(
        [
            torch.stack([blocked_edges(role, 1, table.attributes, 1, core_mask) for role in each])
            for each in (table.layer(layer, heads) for layer in layers)
        ]
    )
    theta = math.log(opening / (1 - opening))
    return torch.full(blocked.shape, theta).masked_fill(blocked, -theta).flatten(-2)[..., 1:]


def soft_mask(
    gates: Float[Tensor, "layer head edge"], original: int, each: int
) -> Float[Tensor, "layer head query key"]:
    """log sigmoid(theta), spread over ``original`` tokens and ``each`` tokens per attribute; 0 among original
    tokens.
    """
    groups = math.isqrt(gates.shape[-1] + 1)
    by_group = pad(logsigmoid(gates), (1, 0)).unflatten(-1, (groups, groups))
    return _spread(_spread(by_group, original, each).mT, original, each).mT


def _spread(x: Float[Tensor, "*any group"], original: int, each: int) -> Float[Tensor, "*any token"]:
    # Expanding has a sum as its gradient, which is the same in every run, unlike that of an index on a GPU.
    of_original = x[..., :1].expand(*x.shape[:-1], original)
    of_attributes = x[..., 1:].unsqueeze(-1).expand(*x.shape[:-1], -1, each).flatten(-2)
    return torch.cat([of_original, of_attributes], dim=-1)
