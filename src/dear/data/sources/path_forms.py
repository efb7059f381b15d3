"""The files that a table or a list names, whose paths were written on another system."""

import os
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path

from dear.errors import compose


def find_files(folder: Path) -> Callable[[str], str]:
    """A function that gives the path of the file, relative to ``folder``, that a listed path means. A path of
    no file stays as it is.

    Windows separates folders by backslashes, macOS may store accents apart from their letters, and cells may
    have spaces around their text.
    """

    @cache
    def stored_names(parent: str) -> Mapping[str, str]:
        try:
            return {compose(name): name for name in os.listdir(folder / parent)}
        except (OSError, ValueError):
            return {}

    def as_stored(path: str) -> str:
        stored = ""
        for part in path.split("/"):
            stored = (
                os.path.join(stored, stored_names(stored).get(compose(part), part)) if part else stored or "/"
            )
        return stored

    def find(path: str) -> str:
        if path.isascii() and "\\" not in path and path == path.strip():
            return path
        spellings = [path, path.strip(), path.replace("\\", "/"), path.strip().replace("\\", "/")]
        candidates = [*spellings, *map(as_stored, filter(None, spellings))]
        return next((candidate for candidate in candidates if os.path.isfile(folder / candidate)), path)

    return find
