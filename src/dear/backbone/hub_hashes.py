"""The hashes of files of the Hugging Face hub: SHA-256 of large ones, git's of small ones."""

import hashlib
import re
from collections.abc import Collection
from pathlib import Path

from huggingface_hub import constants

from dear.errors import WeightsError
from dear.reading.files import ReadingError, opened

SHA256, GIT = re.compile(r"[0-9a-f]{64}"), re.compile(r"[0-9a-f]{40}")
CHUNK = 2**20


class ContentError(WeightsError):
    """A file whose hash is neither the one that the hub states nor a published one."""


def snapshot_of(path: Path) -> Path | None:
    """The folder of a commit in the hub's cache that a file lies in: the outermost, as a repository may have
    folders of any name.
    """
    inside = (
        parent
        for parent in reversed(path.parents)
        if parent.parent.name == "snapshots"
        and GIT.fullmatch(parent.name)
        and "--" in parent.parents[1].name  # models--OWNER--NAME
    )
    return next(inside, None)


def require_known(path: Path, sha256: Collection[str], repository: str) -> None:
    """Raise ContentError for a file with another hash than the published ones."""
    if sha256 and (actual := file_hash(path, "0" * 64)) not in sha256:
        raise ContentError(
            f"{path} is not the file that is known of {repository}: its SHA-256 is {actual}, not "
            f"{' or '.join(sorted(sha256))}. Delete it, and check the hub's address ({constants.ENDPOINT})."
        )


def require_hash(path: Path, stated: str, title: str) -> None:
    """Raise ContentError for a file with another hash (SHA-256 or git's) than ``stated``, after removing it.
    A stated text that is no hash is not compared.
    """
    actual = file_hash(path, stated)
    if actual in ("", stated):
        return
    # A link of the cache leads to a file of it, unless the hub or another program has made it.
    snapshot = snapshot_of(path)
    top = path.parent if snapshot is None else snapshot.parents[2]
    content = path.resolve()
    try:
        for name in {path, content if content.is_relative_to(top.resolve()) else path}:
            name.unlink(missing_ok=True)
        removed = "It was removed: run the command again to fetch it anew."
    except OSError as error:
        removed = f"It cannot be removed ({error.strerror}): delete {path.resolve()} yourself."
    raise ContentError(f"{title} is damaged: its hash is {actual}, the hub states {stated}. {removed}")


def file_hash(path: Path, like: str) -> str:
    """The hash of a file's content, of the same kind as ``like``: SHA-256, or git's of a blob (SHA-1 over a
    header and the content); "" if ``like`` is no hash.
    """
    if SHA256.fullmatch(like):
        digest = hashlib.sha256()
    elif GIT.fullmatch(like):
        digest = hashlib.sha1(f"blob {path.stat().st_size}\0".encode(), usedforsecurity=False)
    else:
        return ""
    try:
        with opened(path, links=True) as file:
            while chunk := file.read(CHUNK):
                digest.update(chunk)
    except ReadingError as error:  # a pipe, for example, which would be waited for
        raise ContentError(f"{path}: {error.reason}: remove it.") from error
    return digest.hexdigest()
