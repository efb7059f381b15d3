"""The files of a model: in a repository of the Hugging Face hub, from its cache if they are there, which
works offline, else downloaded; or in a folder with the same files.
"""

import hashlib
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

import huggingface_hub  # loads its parts when they are used
from huggingface_hub import constants

from dear.backbone.names import HUB, hub_name, is_architecture
from dear.errors import WeightsError, first_line
from dear.limits import LimitError, require_at_most
from dear.reading.files import ReadingError, expanded
from dear.reading.plain import read_json
from dear.reading.typed import shown, typed
from dear.text import printable

INDEX = ".safetensors.index.json"
"""Ending of the name of an index, which lists several safetensors files beside it."""
CONFIG = "open_clip_config.json"
FILES = (
    "open_clip_model.safetensors",
    "open_clip_model.safetensors.index.json",
    "open_clip_pytorch_model.bin",
)
"""open_clip's names for a weights file; the first that a repository has is used."""
SAFE = (".safetensors", ".json")
"""The formats without pickle: no others are downloaded if a file, not the user, names the repository."""
TIMEOUT = 10  # seconds for an answer of the hub


class MissingError(WeightsError):
    """A repository or folder does not have a file."""


def commit_of(path: Path) -> str | None:
    """The commit of a file in the hub's cache (models--OWNER--NAME/snapshots/COMMIT/...); else None."""
    folders = (folder for folder in path.parents if folder.parent.name == "snapshots")
    return next((folder.name for folder in folders), None)


def fetch(
    repository: str,
    files: Sequence[str],
    *,
    title: str = "",
    revision: str | None = None,
    safe_only: bool = False,
    size_limit: str = "tensor_bytes",
    **options: Any,
) -> Path:
    """The first of ``files``, in the order of preference, that a repository has: from the cache, or
    downloaded.

    Args:
        title: What is downloaded, as announced in a line on stderr; "" announces nothing.
        revision: A commit, branch or tag; by default the latest commit.
        safe_only: Download no file that may hold a pickle. A cached one is used.
        size_limit: The limit of a file other than JSON.
        options: Of `huggingface_hub.hf_hub_download`, such as ``token`` and ``cache_dir``.

    Raises WeightsError that says what to do, MissingError if the repository has none of the files, LimitError
    before a file that is too large is downloaded.
    """
    from huggingface_hub.errors import RemoteEntryNotFoundError

    cache = options.get("cache_dir")
    try:
        entries = [
            huggingface_hub.try_to_load_from_cache(repository, file, cache, revision) for file in files
        ]
    except ValueError as error:  # raised by the client for a malformed name
        raise WeightsError(
            f"{repository[:100]!r} is not the name of a repository on the hub: give OWNER/NAME."
        ) from error
    candidates = [entry for entry in entries if entry is not huggingface_hub._CACHED_NO_EXIST]
    cached = next((Path(entry) for entry in candidates if isinstance(entry, str)), None)
    if cached is not None and candidates[0] == str(cached):
        return cached
    allowed = [file for file in files if Path(file).suffix in SAFE or not safe_only]
    try:
        if candidates or revision is None:
            require_answer()
            for file in allowed:
                try:
                    return _download(repository, file, title, size_limit, revision=revision, **options)
                except RemoteEntryNotFoundError:
                    continue
    except LimitError:
        raise
    except Exception as error:  # the network, the hub and the disk share no exception class
        if cached is None:
            raise WeightsError(
                f"cannot download {' or '.join(allowed)} of {constants.ENDPOINT}/{repository} "
                f"({first_line(error)}). Run `hf download {repository}` on a machine with network access and "
                f"copy its hub cache folder to {constants.HF_HUB_CACHE} here."
            ) from error
    if cached is None:
        note = "" if allowed == [*files] else " Only safetensors are downloaded if a file names it."
        raise MissingError(f"{repository} has no {' and no '.join(files)}: name another repository.{note}")
    return cached  # not the first choice


def _download(repository: str, file: str, title: str, size_limit: str, **options: Any) -> Path:
    """Download a file within its limit into the hub's cache, announced in a line on stderr if it has a
    title, and compare its hash with its name in the cache: the client only compares sizes.
    """
    plan = huggingface_hub.hf_hub_download(repository, file, dry_run=True, **options)
    limit = "json_bytes" if file.endswith(".json") else size_limit
    require_at_most(limit, plan.file_size or 0, f"{file} of {repository}")
    if title and plan.will_download and not file.endswith(".index.json"):
        print(
            f"dear: fetching {title} once from {constants.ENDPOINT}/{repository}, "
            f"{(plan.file_size or 0) / 1e6:.0f} MB; it is kept in {constants.HF_HUB_CACHE}",
            file=sys.stderr,
        )
    path = Path(huggingface_hub.hf_hub_download(repository, file, **options))
    if plan.will_download and path.is_symlink():
        blob = path.parent / os.readlink(path)  # not resolved further, as blobs may be links themselves
        with blob.open("rb") as content:
            actual = hashlib.file_digest(content, "sha256").hexdigest()
        if len(blob.name) == len(actual) and actual != blob.name:
            path.unlink()
            blob.unlink()
            raise OSError(f"{file} was damaged on the way and has been removed: try again")
    return path


def require_answer() -> None:
    """Raise at once if the hub does not answer: its client would try again for a minute."""
    huggingface_hub.get_session().head(constants.ENDPOINT, timeout=TIMEOUT)


class Index(TypedDict):
    """The key of an index that is read: the file of each tensor."""

    weight_map: dict[str, str]


def list_shards(index: Path) -> list[str]:
    """The files that an index lists. Raises ReadingError."""
    files = sorted(set(typed(read_json(index), Index, index)["weight_map"].values()))
    for file in files:
        if not file.endswith(".safetensors") or Path(file).name != file or "\\" in file:
            raise ReadingError(
                index, f"its weight_map names {shown(file)}, which is not a safetensors file beside it"
            )
    return files


@dataclass
class Repository:
    """The source of a model's files.

    Attributes:
        name: ``hf-hub:OWNER/NAME`` or a folder.
        folder: the folder; None for the hub.
        named_by: the file that names it ("the bundle NAME"), or "" if the user does. If a file names it, the
            announcement of the download says so, and no format with pickle is fetched.
        commit: the commit of the first file found on the hub; all other files are taken from it too.
    """

    name: str
    folder: Path | None
    named_by: str = ""
    commit: str | None = None

    @property
    def id(self) -> str:
        """Its name on the hub."""
        return self.name.removeprefix(HUB)

    def find(self, files: Sequence[str], title: str = "") -> Path:
        """The first of these files that exists. Raises WeightsError, MissingError if there is none."""
        if self.folder is None:
            safe_only = bool(self.named_by)
            path = fetch(self.id, files, title=title, safe_only=safe_only, revision=self.commit)
            self.commit = self.commit or commit_of(path)
            return path
        for file in files:
            if os.path.lexists(self.folder / file):  # a broken link is not missing
                return self.folder / file
        raise MissingError(
            f"{self.folder} holds no {' and no '.join(files)}: it is not the folder of a CLIP."
        )

    def find_if_any(self, file: str) -> Path | None:
        """The path of a file, or None if there is none."""
        try:
            return self.find((file,))
        except MissingError:
            return None

    def weights(self, files: Sequence[str]) -> Path:
        """The first of these files that exists; if it is an index, also those that it lists."""
        title = self.name if not self.named_by else f"{self.name}, which {printable(self.named_by)} names,"
        path, size = self.find(files, title=title), 0
        for name in list_shards(path) if path.name.endswith(INDEX) else ():
            size += self.find((name,), title=title).stat().st_size
            require_at_most("tensor_bytes", size, path)
        return path


def find_repository(model: str, named_by: str = "") -> Repository | None:
    """The repository that a model's name stands for, or None for the name of an architecture, which comes
    before a folder of that name.
    """
    if is_architecture(model):
        return None
    folder = expanded(model)
    if not model.startswith(HUB) and os.path.isdir(folder):
        return Repository(model, folder, named_by)
    name = hub_name(model)
    return None if name is None else Repository(name, None, named_by)
