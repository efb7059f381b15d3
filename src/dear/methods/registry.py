"""The methods by name, and building them. Reading the table does not load torch: a method's code is imported
when it is built.

Every folder of this package with ``settings.py`` and ``method.py`` is a method; there is no list of them.
"""

from collections.abc import Mapping
from importlib import import_module
from pkgutil import iter_modules
from types import MappingProxyType
from typing import TYPE_CHECKING

import dear.methods
from dear.errors import SettingsError, UnknownNameError
from dear.methods.declaration import Declaration, MethodSettings

if TYPE_CHECKING:
    import torch

    from dear.backbone.clip import Clip
    from dear.methods.base import Method
    from dear.roles.table import RoleTable


def _declared() -> Mapping[str, Declaration]:
    """Each folder's declaration by the method's name, in the order of the papers."""
    folders = [one.name for one in iter_modules(dear.methods.__path__) if one.ispkg]
    found = [import_module(f"dear.methods.{folder}.settings").METHOD for folder in folders]
    return MappingProxyType({one.name: one for one in sorted(found, key=lambda one: one.arxiv)})


METHODS: Mapping[str, Declaration] = _declared()

FROZEN = "zero-shot"
"""Unadapted CLIP: the baseline of all methods."""

OWN = "dear"
"""The method that the package is named after: the default for fitting."""

USUAL = (FROZEN, OWN)
"""The methods that are run by default."""


def known_method(name: str) -> str:
    """The name, unchanged. Raises UnknownNameError, or SettingsError for the prefix of a method's options."""
    if name not in METHODS and name in option_groups():
        raise SettingsError(
            f"{name} is the prefix of options of the method {option_groups()[name]}: give that."
        )
    if name not in METHODS:
        raise UnknownNameError("method", name, METHODS)
    return name


def option_groups() -> dict[str, str]:
    """Methods with settings, by the prefix of their options: "mmrlpp" for mmrl++, as in --mmrlpp.beta."""
    return {one.folder: name for name, one in METHODS.items() if one.settings is not MethodSettings}


def methods_with_roles() -> list[str]:
    """The methods that need a role table, and so take options of the role mask."""
    return [name for name, one in METHODS.items() if one.needs_roles]


def method_class(name: str) -> "type[Method]":
    """The class of a method, from its own module. Raises UnknownNameError."""
    declared = METHODS[known_method(name)]
    module = import_module(f"dear.methods.{declared.folder}.method")
    found: type[Method] = getattr(module, declared.implementation)
    return found


def build_method(
    name: str,
    clip: "Clip",
    generator: "torch.Generator",
    *,
    roles: "RoleTable | None" = None,
    settings: MethodSettings | None = None,
) -> "Method":
    """Build a new method on a CLIP; ``generator`` draws its initial parameters. Raises UnknownNameError for
    an unknown name, SettingsError for settings of another method.
    """
    kind = method_class(name)
    if settings is not None and type(settings) is not METHODS[name].settings:
        raise SettingsError(f"{name} takes {METHODS[name].settings.__name__}, not {type(settings).__name__}.")
    return kind.build(clip, generator, roles, settings)


def frozen_clip(clip: "Clip") -> "Method":
    """Unadapted CLIP as a method: nothing is drawn or trained."""
    import torch

    return build_method(FROZEN, clip, torch.Generator())
