"""Methods made by name; their table is in :mod:`dear.methods.settings`."""

from importlib import import_module

import torch

from dear.backbone.clip import Clip
from dear.errors import SettingsError
from dear.methods.base import Method
from dear.methods.settings import METHODS, MethodSettings, known_method
from dear.roles.table import RoleTable


def method_class(name: str) -> type[Method]:
    """The class of a method, from its own module. Raises UnknownNameError."""
    module, _, attribute = METHODS[known_method(name)].implementation.partition(":")
    found: type[Method] = getattr(import_module(f"dear.methods.{module}"), attribute)
    return found


def build_method(
    name: str,
    clip: Clip,
    generator: torch.Generator,
    *,
    roles: RoleTable | None = None,
    settings: MethodSettings | None = None,
) -> Method:
    """A fresh method on a CLIP; ``generator`` draws its initial parameters. Raises UnknownNameError, and
    SettingsError for settings of another method.
    """
    kind = method_class(name)
    if settings is not None and type(settings) is not METHODS[name].settings:
        raise SettingsError(f"{name} takes {METHODS[name].settings.__name__}, not {type(settings).__name__}.")
    return kind.build(clip, generator, roles, settings)
