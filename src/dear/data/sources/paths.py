"""The paths in lists of images: which file one means, and that it lies in the folder of the images."""

import os
import re
from collections.abc import Callable, Mapping
from functools import cache
from itertools import chain
from pathlib import Path, PurePosixPath, PureWindowsPath
from urllib.parse import unquote

from dear.data.images.decode import SUFFIXES
from dear.errors import DataError
from dear.text import compose

UPLOAD = re.compile(r"/data/(?:upload/(?:\d+/)?|local-files/\?d=)([^/].*)")
UPLOAD_ID = re.compile(r"^[0-9a-f]{8}-")
"""What Label Studio calls an image, and what it puts before the name of its file."""


def require_inside(where: str, path: str) -> None:
    """Raise DataError for a path that leads out of the folder that it is relative to."""
    forms = PurePosixPath(path), PureWindowsPath(path)
    if any(form.anchor or ".." in form.parts for form in forms) or "\0" in path:
        raise DataError(
            f"{where}: the path {path[:200]!r} leads out of the image folder: name a file below it; a "
            "table lies in or above the folder of its images."
        )


def find_files(folder: Path, *, in_folders: bool = False) -> Callable[[str], str]:
    """A function that gives the path of the file, relative to ``folder``, that a listed path means. A path of
    no file stays as it is.

    Windows separates folders by backslashes, macOS may store accents apart from their letters, cells may have
    spaces around their text, an id stands for the only image of that name, and Label Studio lists uploads. If
    files may be ``in_folders``, a name alone stands for that in the only folder here that has it.
    """

    @cache
    def stored_names(parent: str) -> Mapping[str, str]:
        try:
            return {compose(name): name for name in os.listdir(folder / parent)}
        except (OSError, ValueError):
            return {}

    def as_stored(path: str) -> str:
        stored = "/" if path.startswith("/") else ""
        for part in filter(None, path.split("/")):
            stored = os.path.join(stored, stored_names(stored).get(compose(part), part))
        return stored

    def with_suffix(path: str) -> list[str]:
        parent, name = os.path.split(path)
        stems = [(*os.path.splitext(file), file) for file in stored_names(parent).values()]
        images = [file for stem, suffix, file in stems if stem == name and suffix.lower() in SUFFIXES]
        return [os.path.join(parent, image) for image in images] if len(images) == 1 else []

    @cache
    def folders() -> list[str]:
        return [name for name in stored_names("").values() if os.path.isdir(folder / name)]

    def in_a_folder(path: str) -> list[str]:
        if "/" in path or not in_folders:
            return []
        found = [[as_stored(f"{name}/{path}"), *with_suffix(f"{name}/{path}")] for name in folders()]
        files = [file for files in found for file in files if os.path.isfile(folder / file)]
        return files if len(files) == 1 else []

    def find(path: str) -> str:
        is_plain = path.isascii() and "\\" not in path and path == path.strip()
        is_here = not in_folders or "/" in path or path in stored_names("")
        is_image = os.path.splitext(path)[1].lower() in SUFFIXES
        if is_plain and is_here and is_image and not path.startswith("/data/"):
            return path
        spellings = [path, path.strip(), path.replace("\\", "/"), path.strip().replace("\\", "/")]
        if (upload := UPLOAD.fullmatch(path)) and ".." not in (name := unquote(upload[1])):
            spellings += [name, f"images/{name}", UPLOAD_ID.sub("", name)]
        by_id = chain.from_iterable(map(with_suffix, spellings))
        alone = chain.from_iterable(map(in_a_folder, spellings))
        candidates = chain(spellings, map(as_stored, spellings), by_id, alone)
        return next((candidate for candidate in candidates if os.path.isfile(folder / candidate)), path)

    return find
