"""What to run. Light to import, so that commands can show it without loading torch."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from dear.errors import SettingsError
from dear.methods.registry import METHODS, check_settings, known_method, methods_with_roles

if TYPE_CHECKING:
    from dear.roles.table import RoleTable

RoleVariant = Literal["roles", "all-isolated", "all-mixed", "shuffled"]
"""The role table unchanged, or one of the paper's ablations of it."""
Select = Literal["last", "val"]

ALL = "all"


@dataclass(frozen=True)
class Plan:
    """One method with its settings, to run on each data set and seed.

    Attributes:
        method: The method's name.
        role_variant: For methods with head roles, which variant of the role table the mask is built from.
        settings: The method's settings (its dataclass); its defaults if None.
        quantile: For methods with head roles, reassign the roles with this share of the heads (percent) at
            each end.
        attributes: For methods with head roles, K: the number of core attributes.
        label: Name of a run with other settings in records and tables, for example "CE + reg".
    """

    method: str
    role_variant: RoleVariant = "roles"
    settings: Any = None
    quantile: float | None = None
    attributes: int | None = None
    label: str | None = None

    def __post_init__(self) -> None:
        """Raise SettingsError for settings that are not of the method's dataclass, or of head roles that the
        method does not have.
        """
        if self.settings is not None:
            check_settings(self.method, self.settings)
        of_roles = {"role_variant": self.role_variant != "roles", "quantile": self.quantile is not None}
        of_roles["attributes"] = self.attributes is not None
        for name in [name for name, is_set in of_roles.items() if is_set and not self.needs_roles]:
            applies = f"{name} applies to {' or '.join(methods_with_roles())}"
            raise SettingsError(f"{self.method} has no head roles: {applies}.")

    @property
    def variant(self) -> str | None:
        """How the run differs from the method as published; None if it does not."""
        if self.label:
            return self.label
        parts = [
            "" if self.role_variant == "roles" else self.role_variant,
            "" if self.quantile is None else f"q = {self.quantile:g}%",
            "" if self.attributes is None else f"K = {self.attributes}",
        ]
        return ", ".join(part for part in parts if part) or None

    @property
    def needs_roles(self) -> bool:
        return METHODS[known_method(self.method)].needs_roles

    @property
    def can_lack_roles(self) -> bool:
        """True if it runs where no role table is known, too, and nothing of it asks for one."""
        as_found = (self.role_variant, self.quantile, self.attributes) == ("roles", None, None)
        return METHODS[known_method(self.method)].without_roles and as_found

    @property
    def trains(self) -> bool:
        """True if there is anything to train: a run that does not train uses no training images."""
        return METHODS[known_method(self.method)].trains

    @property
    def unlabelled(self) -> bool:
        """True if it trains on the unlabelled training images of all classes."""
        return METHODS[known_method(self.method)].unlabelled

    def table(self, roles: "RoleTable | None", seed: int) -> "RoleTable | None":
        """The role table of a run; shuffled roles are a different permutation for each seed."""
        from dear.roles.entropy import with_attributes, with_quantile

        if roles is None or not self.needs_roles:
            return None
        if self.attributes is not None:
            roles = with_attributes(roles, self.attributes)
        if self.quantile is not None:
            roles = with_quantile(roles, self.quantile)
        match self.role_variant:
            case "roles":
                return roles
            case "shuffled":
                return roles.shuffled(seed)
            case "all-isolated":
                return roles.uniform("generalization")
            case "all-mixed":
                return roles.uniform("mixed")


def expand_all(items: Sequence[Any], methods: Iterable[str] = METHODS) -> list[Any]:
    """Expand "all" in a list of methods, which are names or mappings with the name under "method". "all"
    stands for each of ``methods`` that no other item names; the result is then in their order.
    """
    if ALL not in items:
        return list(items)
    order = list(methods)
    names = [item.get("method") if isinstance(item, dict) else item for item in items]
    pairs = [*zip(names, items, strict=True), *((name, name) for name in order if name not in names)]
    pairs.sort(key=lambda pair: order.index(pair[0]) if pair[0] in order else len(order))
    return [item for _, item in pairs if item != ALL]
