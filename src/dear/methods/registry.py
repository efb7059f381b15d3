"""The table of methods by name, and methods made by name. Reading the table loads no torch: a method's own
code is imported when it is built.

A folder of this package with ``settings.py`` and ``method.py`` is a method; nothing here lists them.
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
    """Each folder's declaration by the method's name, in the order of the papers; of one paper, first what
    trains nothing.
    """
    folders = [one.name for one in iter_modules(dear.methods.__path__) if one.ispkg]
    found = [import_module(f"dear.methods.{folder}.settings").METHOD for folder in folders]
    return MappingProxyType({one.name: one for one in sorted(found, key=lambda one: (one.arxiv, one.trains))})


METHODS: Mapping[str, Declaration] = _declared()

FROZEN = "zero-shot"
"""CLIP as it is: what methods are compared with."""

OWN = "dear"
"""The method that the package is named after: what is fitted if none is named."""

USUAL = (FROZEN, OWN)
"""The methods that are run if none is named."""


def known_method(name: str) -> str:
    """The name, if a method has it. Raises UnknownNameError, SettingsError for the name of its options."""
    if name not in METHODS and name in option_groups():
        raise SettingsError(f"{name} is how options of the method {option_groups()[name]} begin: give that.")
    if name not in METHODS:
        raise UnknownNameError("method", name, METHODS)
    return name


def option_groups() -> dict[str, str]:
    """The methods with settings, by the name of their options: "mmrlpp" is mmrl++, as --mmrlpp.beta."""
    return {one.folder: name for name, one in METHODS.items() if one.settings is not MethodSettings}


def methods_with_roles() -> list[str]:
    """The methods that need a role table: options of the role mask go with them."""
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
    """A fresh method on a CLIP; ``generator`` draws its initial parameters. Raises UnknownNameError, and
    SettingsError for settings of another method.
    """
    kind = method_class(name)
    if settings is not None and type(settings) is not METHODS[name].settings:
        raise SettingsError(f"{name} takes {METHODS[name].settings.__name__}, not {type(settings).__name__}.")
    return kind.build(clip, generator, roles, settings)


def frozen_clip(clip: "Clip") -> "Method":
    """CLIP as it is, as a method: nothing is drawn and nothing trained."""
    import torch

    return build_method(FROZEN, clip, torch.Generator())
