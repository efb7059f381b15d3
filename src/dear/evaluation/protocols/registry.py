"""The protocols by name, discovered from the files of this folder."""

from collections.abc import Mapping
from importlib import import_module
from pkgutil import iter_modules
from types import MappingProxyType

import dear.evaluation.protocols
from dear.errors import UnknownNameError
from dear.evaluation.protocols.base import Protocol


def _discovered() -> Mapping[str, type[Protocol]]:
    """The classes that have a name, by name, sorted by their position."""
    names = [info.name for info in iter_modules(dear.evaluation.protocols.__path__)]
    classes = [
        value
        for name in names
        if name != "registry"
        for value in vars(import_module(f"dear.evaluation.protocols.{name}")).values()
        if isinstance(value, type) and issubclass(value, Protocol) and "name" in vars(value)
    ]
    return MappingProxyType({kind.name: kind for kind in sorted(classes, key=lambda kind: kind.position)})


PROTOCOLS: Mapping[str, type[Protocol]] = _discovered()


def protocol_class(name: str) -> type[Protocol]:
    """The class of a protocol. Raises UnknownNameError for an unknown name."""
    if name not in PROTOCOLS:
        raise UnknownNameError("protocol", name, PROTOCOLS)
    return PROTOCOLS[name]
