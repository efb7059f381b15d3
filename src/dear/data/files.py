"""Writing a JSON file whole or not at all."""

import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from dear.errors import OutputError


def write_whole(path: Path, value: Mapping[str, Any]) -> None:
    """Write JSON under a temporary name, then rename it. Raises OutputError."""
    part = path.with_name(path.name + ".part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part.write_text(json.dumps(value, indent=1), encoding="utf-8")
        part.replace(path)
    except OSError as error:
        with suppress(OSError):
            part.unlink()
        raise OutputError(f"cannot write {path}: {error}. Choose another place with --out.") from error
