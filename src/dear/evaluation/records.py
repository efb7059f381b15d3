"""Run records: one JSON object a run, written whole or not at all."""

import json
import os
import platform
from collections.abc import Mapping
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from dear import __version__
from dear.errors import DataError, OutputError

SCHEMA = 1


def environment() -> dict[str, str | int]:
    """What the numbers were computed with."""
    return {
        "dear": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "open_clip": version("open_clip_torch"),
        "machine": platform.machine(),
        "threads": torch.get_num_threads(),
    }


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write JSON through a temporary file beside it, so that a reader never meets half of it."""
    part = path.with_name(path.name + ".part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with part.open("w", encoding="utf-8") as file:
            json.dump(value, file, indent=1)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except OSError as error:
        _remove(part)
        raise OutputError(f"cannot write {path}: {error}. Choose another place with --out.") from error
    except BaseException:  # a value that JSON does not hold, or Ctrl-C
        _remove(part)
        raise


def make_folder(folder: Path) -> None:
    """Make the folder of records before anything is computed for it. Raises OutputError."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"cannot write to {folder}: {error}. Choose another place with --out.") from error
    if not os.access(folder, os.W_OK | os.X_OK):
        raise OutputError(f"cannot write to {folder}: no permission. Choose another place with --out.")


def _remove(part: Path) -> None:
    with suppress(OSError):  # the folder itself may not be there
        part.unlink()


def read_record(path: Path) -> dict[str, Any]:
    """Read a record. Raises DataError for a damaged file or another schema."""
    try:
        record = dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise DataError(f"{path} is not a run record: {error}") from error
    if record.get("schema") != SCHEMA:
        raise DataError(
            f"{path} is of record schema {record.get('schema')}, this version reads {SCHEMA}: run it again."
        )
    return record
