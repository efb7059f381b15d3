"""What a reader of files from outside is to the fuzz test, and helpers to write its good file."""

import contextlib
import io
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from PIL import Image

from dear.backbone.clip import Clip
from dear.cli.main import main
from dear.errors import DearError
from tests.conftest import small_clip_of


class TakenOver(Exception):
    """What no reader may let through: a bad value that was used as if it were good."""


@dataclass(frozen=True)
class Target:
    """A reader.

    Attributes:
        form: of its files, which says how they are changed.
        make: writes what it needs into a folder; returns the file that is to be changed.
        read: reads that file and uses it as a command would. Anything but a DearError is a fault.
        seal: after a change, makes fit what a careful attacker would make fit (a checksum).
    """

    form: str
    make: Callable[[Path], Path]
    read: Callable[[Path], object]
    seal: Callable[[Path], object] | None = None


@cache
def clip() -> Clip:
    return small_clip_of()


def command(*words: object) -> None:
    """Run a command; its error is raised again."""
    printed, told = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(told):
        code = main([str(word) for word in words])
    if code == 2:
        raise DearError(told.getvalue())


def written(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def photo(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (7, 5)).save(path)
