"""What to run. Light to import, so that commands can show it without loading torch."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from dear.roles.table import RoleTable

Mask = Literal["roles", "all-isolated", "all-mixed", "shuffled"]


@dataclass(frozen=True)
class Plan:
    """What to run on each data set and seed.

    Attributes:
        method: The method's name.
        mask: For DeAR, the role mask: of the role table, or of one of the paper's ablations of it.
    """

    method: str
    mask: Mask = "roles"

    @property
    def variant(self) -> str | None:
        return None if self.mask == "roles" else self.mask

    def table(self, roles: "RoleTable | None", seed: int) -> "RoleTable | None":
        """The role table under this plan's mask; shuffled roles are another deal for each seed."""
        if roles is None or self.mask == "roles":
            return roles
        if self.mask == "shuffled":
            return roles.shuffled(seed)
        return roles.uniform("generalization" if self.mask == "all-isolated" else "mixed")
