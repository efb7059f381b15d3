"""What the cache of the Hugging Face hub knows of a repository: its files, and those that a commit lacks."""

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import huggingface_hub
from huggingface_hub import constants

from dear.backbone.choice import REPOSITORY
from dear.backbone.hub_hashes import GIT, SHA256, ContentError, snapshot_of
from dear.errors import WeightsError, first_line
from dear.reading.files import ReadingError, read_bytes, require_inside
from dear.reading.namesakes import note_folder


def look_up(
    repository: str, file: str, revision: str | None, cache_dir: Path | str | None = None
) -> str | Any | None:
    """The path of a file, the client's mark for one that the commit lacks, or None if neither is known.
    Raises WeightsError for a cache that cannot be read.
    """
    folder = _folder(repository, cache_dir)
    branch = folder / "refs" / (revision or "main")  # read by the client as text
    try:
        if branch.is_file():
            read_bytes(branch).decode()
        entry = huggingface_hub.try_to_load_from_cache(
            repository, file, cache_dir=cache_dir, revision=revision
        )
        if entry is huggingface_hub._CACHED_NO_EXIST:  # a note, which a faulty mirror may have left
            commit = read_bytes(branch).decode().strip() if branch.is_file() else str(revision)
            present = folder / "snapshots" / commit / file
            return str(present) if GIT.fullmatch(commit) and present.is_file() else entry
        return entry
    except (ReadingError, UnicodeError) as error:
        raise WeightsError(f"{branch} names no commit ({first_line(error)}): remove it.") from error
    except OSError as error:
        raise WeightsError(
            f"the hub's cache of {repository} cannot be read ({first_line(error)}): remove {folder}."
        ) from error


def note_folder_of(name: str) -> None:
    """Warn that a name like OWNER/NAME is a folder here, if the cache has a repository of that name."""
    if REPOSITORY.fullmatch(name) and _folder(name, None).is_dir():
        note_folder(name)


def require_own(path: Path) -> str:
    """The hash that a cached file is named after, or "" for one that is no link, in a cache without links.
    Raises ContentError for a link to anything else than a blob of its repository.
    """
    snapshot = snapshot_of(path) or path.parent
    try:
        require_inside(snapshot, snapshot.parents[1])
        require_inside(path, snapshot)
        blob = Path(os.readlink(path)).name if path.is_symlink() else ""
    except (ReadingError, OSError) as error:
        raise ContentError(f"{path} leads out of its repository's cache: remove it.") from error
    if blob and not (SHA256.fullmatch(blob) or GIT.fullmatch(blob)):
        raise ContentError(f"{path} is a link to a file that is not named after its hash: remove it.")
    return blob


def known_missing(repository: str, files: Sequence[str], revision: str | None) -> bool:
    """True if the cache knows that a commit has none of the files."""
    if revision is not None and GIT.fullmatch(revision):  # which the client would look up among its branches
        notes, snapshot = _notes(repository, revision), _folder(repository) / "snapshots" / revision
        return all((notes / file).is_file() and not (snapshot / file).is_file() for file in files)
    return all(look_up(repository, file, revision) is huggingface_hub._CACHED_NO_EXIST for file in files)


def note_missing(repository: str, files: Sequence[str], commit: object) -> None:
    """Note in the cache, as the hub's client does, that a commit has none of the files."""
    if not GIT.fullmatch(str(commit)):
        return
    notes = _notes(repository, str(commit))
    with suppress(OSError):  # a cache that is read-only
        if notes.parents[1].is_dir():  # something of the repository is there
            for file in files:
                if Path(file).name == file:
                    notes.mkdir(parents=True, exist_ok=True)
                    (notes / file).touch()


def _folder(repository: str, cache_dir: Path | str | None = None) -> Path:
    return Path(cache_dir or constants.HF_HUB_CACHE, f"models--{repository.replace('/', '--')}")


def _notes(repository: str, commit: str) -> Path:
    """Where the hub's client notes what a commit lacks."""
    return _folder(repository) / ".no_exist" / commit
