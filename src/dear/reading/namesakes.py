"""Notes on a name that stands for something else than a file or folder that has it too."""

import os
from functools import cache

from dear.errors import printable, warn


def note_namesake(name: str, meaning: str, path: str | None = None) -> None:
    """Warn, once for a name, that it is that of an architecture, a tag, a task (``meaning``), if the current
    folder holds something of that name: a stranger's folder may, and the user may mean it, which he then
    writes ``path``, by default ./NAME.
    """
    if os.path.lexists(name):
        instead = path or os.path.join(os.curdir, name)
        _warn_once(f"{name} is {meaning}; for what is called so in this folder write {instead}", os.getcwd())


def note_folder(name: str) -> None:
    """Warn, once for a name, that OWNER/NAME, as repositories of the hub are called, is a folder here."""
    _warn_once(f"{name} is the folder {os.path.abspath(name)}, no repository of the hub", os.getcwd())


@cache
def _warn_once(message: str, _folder: str) -> None:
    warn(printable(message))
