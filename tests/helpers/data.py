"""Data sets as files."""

import zipfile
from pathlib import Path


def pack(path: Path, folder: Path, within: str = "") -> Path:
    with zipfile.ZipFile(path, "w") as file:
        for place in sorted(folder.rglob("*")):
            if place.is_file():
                file.write(place, within + place.relative_to(folder).as_posix())
    return path
