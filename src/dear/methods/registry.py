"""The methods by name. A new one is one file and one line in METHODS."""

from collections.abc import Callable, Mapping

import torch

from dear.backbone.clip import Clip
from dear.errors import RoleTableError, UnknownNameError
from dear.methods.contract import Method
from dear.methods.dear import Dear
from dear.methods.settings import DearSettings
from dear.methods.zero_shot import ZeroShot
from dear.roles.table import RoleTable

Build = Callable[[Clip, torch.Generator, RoleTable | None, DearSettings | None], Method]


def _dear(
    clip: Clip, generator: torch.Generator, roles: RoleTable | None, settings: DearSettings | None
) -> Method:
    if roles is None:
        raise RoleTableError(
            f"DeAR needs a role table for {clip.identity} and none is known: give one with --roles FILE."
        )
    return Dear(clip, roles, generator, settings)


METHODS: Mapping[str, Build] = {
    "zero-shot": lambda clip, _generator, _roles, _settings: ZeroShot(clip),
    "dear": _dear,
}


def build_method(
    name: str,
    clip: Clip,
    generator: torch.Generator,
    *,
    roles: RoleTable | None = None,
    settings: DearSettings | None = None,
) -> Method:
    """A fresh method on a CLIP; ``generator`` draws its initial parameters. Raises UnknownNameError."""
    return METHODS[known_method(name)](clip, generator, roles, settings)


def known_method(name: str) -> str:
    """The name, if a method has it. Raises UnknownNameError."""
    if name not in METHODS:
        raise UnknownNameError("method", name, METHODS)
    return name
