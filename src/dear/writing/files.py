"""Atomic writing of files."""

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO
from uuid import uuid4

from dear.errors import OutputError


@contextmanager
def atomic_write(path: Path, *, shared: bool = False) -> Iterator[BinaryIO]:
    """A temporary file to write to, which replaces ``path`` at the end; its folder is created.

    On any error within, the temporary file is removed and an existing ``path`` stays unchanged. Cache files
    are ``shared``: other processes may write the same one at the same time, and it need not survive a power
    loss. Raises OSError.
    """
    # A killed process leaves at most one temporary file, which the next one overwrites; not so if shared.
    part = path.with_name(f"{path.name}.{uuid4().hex[:8]}.part" if shared else f"{path.name}.part")
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with part.open("wb") as file:
            yield file
            if not shared:
                file.flush()
                os.fsync(file.fileno())
        os.replace(part, path)
    except BaseException:
        with suppress(OSError):
            part.unlink()
        raise


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write JSON atomically. Raises OutputError."""
    text = json.dumps(value, indent=1)
    try:
        with atomic_write(path) as file:
            file.write(text.encode())
    except OSError as error:
        raise OutputError(f"cannot write {path}: {error}. Choose another place with --out.") from error
