"""Files that a commit of the Hugging Face hub lacks, noted in the cache: known offline too."""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import huggingface_hub
from huggingface_hub import constants

from dear.backbone.hub_hashes import GIT


def known_missing(repository: str, files: Sequence[str], revision: str | None) -> bool:
    """True if the cache knows that a commit has none of the files."""
    if revision is not None and GIT.fullmatch(revision):  # which the client would look up among its branches
        return all((_folder(repository, revision) / file).is_file() for file in files)
    found = [huggingface_hub.try_to_load_from_cache(repository, file, revision=revision) for file in files]
    return all(path is huggingface_hub._CACHED_NO_EXIST for path in found)


def _folder(repository: str, commit: str) -> Path:
    """Where the hub's client notes what a commit lacks."""
    return Path(constants.HF_HUB_CACHE, f"models--{repository.replace('/', '--')}", ".no_exist", commit)


def note_missing(repository: str, files: Sequence[str], commit: object) -> None:
    """Note in the cache, as the hub's client does, that a commit has none of the files."""
    if not GIT.fullmatch(str(commit)):
        return
    folder = _folder(repository, str(commit))
    with suppress(OSError):  # a cache that is read-only
        if folder.parents[1].is_dir():  # something of the repository is there
            for file in files:
                if Path(file).name == file:
                    folder.mkdir(parents=True, exist_ok=True)
                    (folder / file).touch()
