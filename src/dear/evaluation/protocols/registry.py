"""The protocols by name, discovered from the files of this folder."""

from collections.abc import Mapping
from importlib import import_module
from pkgutil import iter_modules
from types import MappingProxyType

import dear.evaluation.protocols
from dear.errors import UnknownNameError
from dear.evaluation.protocols.base import Protocol


def _found() -> Mapping[str, type[Protocol]]:
    """The classes that have a name, by name, sorted by their place."""
    modules = [one.name for one in iter_modules(dear.evaluation.protocols.__path__) if one.name != "registry"]
    classes = [
        one
        for module in modules
        for one in vars(import_module(f"dear.evaluation.protocols.{module}")).values()
        if isinstance(one, type) and issubclass(one, Protocol) and "name" in vars(one)
    ]
    return MappingProxyType({one.name: one for one in sorted(classes, key=lambda one: one.place)})


PROTOCOLS: Mapping[str, type[Protocol]] = _found()


def protocol_class(name: str) -> type[Protocol]:
    """The class of a protocol. Raises UnknownNameError for an unknown name."""
    if name not in PROTOCOLS:
        raise UnknownNameError("protocol", name, PROTOCOLS)
    return PROTOCOLS[name]
