"""The protocols by name, in the order of their commands and tables. A file defines what is trained on, what
is tested, and what the results contain; it is found by itself.
"""

from collections.abc import Iterator, Mapping
from importlib import import_module
from pkgutil import iter_modules

from dear.evaluation.protocols.base import Protocol


def _find_protocols() -> Iterator[type[Protocol]]:
    """The protocols with a name that the files of this folder define."""
    for file in iter_modules(__path__, f"{__name__}."):
        for kind in vars(import_module(file.name)).values():
            if isinstance(kind, type) and kind.__module__ == file.name and "name" in vars(kind):
                yield kind


PROTOCOLS: Mapping[str, type[Protocol]] = {
    kind.name: kind for kind in sorted(_find_protocols(), key=lambda kind: kind.name)
}
"""The class of each protocol by its name in commands, recipes and records."""
