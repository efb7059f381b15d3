"""Files of the Hugging Face hub: from its cache if present, which works offline, else downloaded. Either way
their hash is compared: with the hash that the hub states, and later with the file's name in the cache.
"""

import re
import sys
import urllib.error
import urllib.request
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import huggingface_hub  # loads its parts when they are used
from huggingface_hub import constants

from dear.backbone.hub_answers import checked_answers, stated_size
from dear.backbone.hub_cache import known_missing, look_up, note_missing, require_own
from dear.backbone.hub_hashes import GIT, SHA256, ContentError, require_hash, require_known, snapshot_of
from dear.errors import WeightsError, first_line, printable, warn
from dear.limits import LimitError, at_most

CONFIG = "open_clip_config.json"
FILES = (
    "open_clip_model.safetensors",
    "open_clip_model.safetensors.index.json",
    "open_clip_pytorch_model.bin",
)
"""open_clip's names for a weights file; the first that a repository has is used."""
SAFE = (".safetensors", ".json")
"""The formats without pickle: the only ones fetched if a file names the repository."""
NAME = re.compile(r"[\w.-]+(/[\w.-]+)?", re.ASCII)
"""A name without control characters; the hub's client checks the rest."""

Lists = dict[tuple[str, str], tuple[Any, dict[str, Any]]]
"""By repository and commit, what the hub states of it, and its files by name: a list may have 11 MB."""

_silent = set[str]()
"""Repositories whose cache will do, after the hub did not answer: each is asked once in a process."""
_asked_again = set[str]()
"""Repositories whose latest commit was known to lack what was asked for: likewise."""


class MissingError(WeightsError):
    """A file that a repository or folder is known to lack."""


class _Lacking(FileNotFoundError):
    """The hub's list of a repository has none of the files."""


def require_name(repository: str) -> None:
    """Raise WeightsError for a text that is no name of a repository."""
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils._validators import validate_repo_id

    try:
        if not NAME.fullmatch(repository):
            raise HFValidationError
        validate_repo_id(repository)
    except HFValidationError as error:
        raise WeightsError(
            f"{repository[:100]!r} is no name of a repository on the hub: give OWNER/NAME."
        ) from error


def cached(
    repository: str,
    files: Sequence[str],
    revision: str | None = None,
    cache_dir: Path | str | None = None,
) -> Path | None:
    """The first of ``files`` in the hub's cache, or None. Raises WeightsError for a text that names no
    repository, ContentError if its content was changed: the cache names a file after its hash.
    """
    return _first_cached(repository, files, revision, cache_dir)[1]


def _first_cached(
    repository: str, files: Sequence[str], revision: str | None, cache_dir: Path | str | None = None
) -> tuple[Sequence[str], Path | None]:
    """The same after the files before it, which the cache lacks."""
    require_name(repository)
    for number, file in enumerate(files):
        cached_path = look_up(repository, file, revision, cache_dir)
        if isinstance(cached_path, str):
            path = Path(cached_path)
            if revision is not None and GIT.fullmatch(revision) and commit_of(path) not in (revision, None):
                continue  # the client notes what a hub answered to a commit
            require_hash(path, require_own(path), f"{file} of {repository} in the hub's cache")
            return files[:number], path
    return files, None


def commit_of(path: Path) -> str | None:
    """The commit of a file in the hub's cache; None for any other file."""
    snapshot = snapshot_of(path)
    return None if snapshot is None else snapshot.name


def fetch(
    repository: str,
    files: Sequence[str],
    *,
    title: str = "",
    revision: str | None = None,
    sha256: Collection[str] = (),
    safe_only: bool = False,
    lists: Lists | None = None,
) -> Path:
    """The first of ``files`` that a repository has, from the cache or downloaded and compared with the hash
    that the hub states.

    Args:
        repository: OWNER/NAME.
        files: In the order of preference.
        title: The name of the model, for a line on stderr before the download; "" prints none.
        revision: A commit, or None for the latest.
        sha256: Published hashes of the file; empty if there are none.
        safe_only: Fetch no file that may hold a pickle. A cached one is used.
        lists: Those that the hub has sent before, and afterwards also the one that it sends now.

    Raises WeightsError that names the file, ContentError if its hash differs from the hub's or the published,
    MissingError if the repository is known to have none.
    """
    lacking, path = _first_cached(repository, files, revision)
    if path is not None:
        path = _preferred(path, repository, lacking, title, safe_only, lists) or path
        require_known(path, sha256, repository)
        return path
    if known_missing(repository, files, revision) and not _may_have_moved(repository, revision):
        raise MissingError(f"{repository} has no {' and no '.join(files)}: name another repository.")
    offered = [file for file in files if Path(file).suffix in SAFE or not safe_only]
    try:
        reach()
        path = download(repository, offered, title=title, revision=revision, lists=lists)
    except (ContentError, LimitError):
        raise
    except Exception as error:  # the network, the hub and the disk share no exception class
        note = " Only safetensors are fetched from a repository that a file names."
        note = "" if len(offered) == len(files) else note
        kind = MissingError if isinstance(error, _Lacking) else WeightsError
        raise kind(
            f"cannot download {' or '.join(offered)} of https://huggingface.co/{repository} "
            f"({first_line(error)}).{note} Run `hf download {repository}` on a machine with "
            f"network access and copy its hub cache folder to {constants.HF_HUB_CACHE} here."
        ) from error
    require_known(path, sha256, repository)
    return path


def _may_have_moved(repository: str, revision: str | None) -> bool:
    """True once in a process for the latest commit, which may be another one now, if the hub answers."""
    if revision is not None or repository in _asked_again:
        return False
    _asked_again.add(repository)
    try:
        reach()
    except Exception:  # as in `fetch`
        return False
    return True


def _preferred(
    path: Path, repository: str, files: Sequence[str], title: str, safe_only: bool, lists: Lists | None
) -> Path | None:
    """The first of the files that come before a cached one, if its commit has any: another program may have
    cached the one alone. None if the hub cannot be asked, which a warning says unless it must not be.
    """
    commit = commit_of(path)
    asked = [file for file in files if Path(file).suffix in SAFE or not safe_only]
    if commit is None or repository in _silent or known_missing(repository, asked, commit):
        return None
    try:
        reach()
        return download(repository, asked, title=title, revision=commit, lists=lists)
    except (_Lacking, ContentError, LimitError) as error:
        if isinstance(error, _Lacking):
            return None
        raise
    except Exception as error:  # as above
        _silent.add(repository)
        if not constants.HF_HUB_OFFLINE:
            warn(
                f"whether {repository} has {' or '.join(asked)} cannot be found out now "
                f"({first_line(error)}): {path.name} of the hub's cache is used instead."
            )
        return None


def download(
    repository: str,
    files: Sequence[str],
    *,
    title: str = "",
    revision: str | None = None,
    size_limit: str = "tensor_bytes",
    lists: Lists | None = None,
    **options: Any,
) -> Path:
    """Download the first of ``files`` that a repository has into the hub's cache, and compare its hash.

    ``size_limit`` is the limit of a file that is no JSON, ``lists`` are as in `fetch`, and ``options`` those
    of `huggingface_hub.hf_hub_download`. Raises ContentError, LimitError before anything is fetched, and what
    the hub's client raises.
    """
    hub = huggingface_hub.HfApi(endpoint=constants.ENDPOINT, token=options.get("token"))
    asked = revision if revision is not None and GIT.fullmatch(revision) else None
    listed = (lists or {}).get((repository, asked or ""))
    info, entries = listed or _listed(hub, repository, revision)
    if asked is not None and info.sha != asked:
        raise ContentError(f"the hub at {constants.ENDPOINT} answers with another commit of {repository}.")
    if lists is not None:
        lists[repository, str(info.sha)] = info, entries
    file = next((file for file in files if file in entries), None)
    if file is None:
        note_missing(repository, files, info.sha)
        raise _Lacking(f"it has no {' and no '.join(files)}" if files else "it has no such file")
    size = stated_size(entries[file], repository)
    if title and Path(file).suffix != ".json":
        announce(title, repository, size, info.card_data)
    size_limit = "json_bytes" if file.endswith(".json") else size_limit
    at_most(size_limit, size, f"{file} of {repository}")
    stated = _stated_hash(entries[file])
    with checked_answers(f"{file} of {repository}", size_limit, asked):
        path = Path(
            huggingface_hub.hf_hub_download(
                repository, file, revision=revision, endpoint=constants.ENDPOINT, **options
            )
        )
    commit = path.parts[-len(Path(file).parts) - 1]
    if commit != info.sha:  # a commit came in between
        _, entries = _listed(hub, repository, commit)
        stated = _stated_hash(entries[file])
    require_own(path)
    require_hash(path, stated, f"{file} of {repository}")
    note_missing(repository, [name for name in files[: files.index(file)] if name not in entries], commit)
    return path


def _listed(hub: Any, repository: str, revision: str | None) -> tuple[Any, dict[str, Any]]:
    """What the hub states of a repository, and its files by name."""
    with checked_answers(repository, "json_bytes"):
        info = hub.model_info(repository, revision=revision, files_metadata=True)
    return info, {entry.rfilename: entry for entry in info.siblings or ()}


def _stated_hash(entry: Any) -> str:
    """The hash of a file in the hub's list of a repository. Raises ValueError if it states none."""
    stated = entry.lfs.sha256 if entry.lfs is not None else entry.blob_id
    if not (stated and (SHA256.fullmatch(stated) or GIT.fullmatch(stated))):
        raise ValueError(f"the hub states no hash of {entry.rfilename}, so that it cannot be checked")
    return str(stated)


def announce(title: str, repository: str, size: int | None, card: Any) -> None:
    """Announce a download on stderr in one line: its name, size, licence (if the hub states them), folder.
    Nothing is announced if the hub must not be asked.
    """
    if constants.HF_HUB_OFFLINE:
        return
    megabytes = f", {size / 1e6:.0f} MB" if size else ""
    licence = f", licence {printable(str(card.license))[:80]}" if card is not None and card.license else ""
    print(
        f"dear: fetching {title} once from {constants.ENDPOINT}/{repository}{megabytes}{licence}; "
        f"it is kept in {constants.HF_HUB_CACHE}",
        file=sys.stderr,
    )


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A redirect is an answer. To follow one is to ask any address, and to read its answer to the end."""

    def redirect_request(self, *_: Any) -> None:
        return None


def reach() -> None:
    """Raise URLError at once if the hub does not answer; its client would retry for a minute."""
    if constants.HF_HUB_OFFLINE:
        raise ConnectionError("HF_HUB_OFFLINE is set")
    try:
        request = urllib.request.Request(constants.ENDPOINT, method="HEAD")
        urllib.request.build_opener(_NoRedirect).open(request, timeout=10).close()
    except urllib.error.HTTPError as error:
        error.close()  # the hub answers; let the client decide
