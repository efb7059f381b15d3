"""Files written whole or not at all."""

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
    """A file to write to under a temporary name, which takes its place at the end; its folder is made.

    Whatever is raised within, no part is left and what was there before stays. A file of a cache is
    ``shared``: others may write the same one meanwhile, and it need not outlive a power cut. Raises OSError.
    """
    # Of a run that is killed one part is left at most, which the next one writes over; a shared one cannot.
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
    """Write JSON, so that a reader never meets half of it. Raises OutputError."""
    text = json.dumps(value, indent=1)
    try:
        with atomic_write(path) as file:
            file.write(text.encode())
    except OSError as error:
        raise OutputError(f"cannot write {path}: {error}. Choose another place with --out.") from error
