"""The protocols by name, discovered from the files of this folder. Each file defines what is trained on, what
is tested, and what the results contain.
"""

from collections.abc import Mapping
from importlib import import_module
from pkgutil import iter_modules
from types import MappingProxyType

from dear.errors import UnknownNameError
from dear.evaluation.protocols.base import Protocol


def _discover() -> Mapping[str, type[Protocol]]:
    """The classes that have a name, by name, sorted by their position."""
    classes = [
        value
        for module in iter_modules(__path__)
        for value in vars(import_module(f"{__name__}.{module.name}")).values()
        if isinstance(value, type) and issubclass(value, Protocol) and "name" in vars(value)
    ]
    return MappingProxyType({kind.name: kind for kind in sorted(classes, key=lambda kind: kind.position)})


PROTOCOLS: Mapping[str, type[Protocol]] = _discover()


def protocol_class(name: str) -> type[Protocol]:
    """The class of a protocol. Raises UnknownNameError for an unknown name."""
    if name not in PROTOCOLS:
        raise UnknownNameError("protocol", name, PROTOCOLS)
    return PROTOCOLS[name]
