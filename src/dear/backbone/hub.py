"""Files of the Hugging Face hub: from its cache if present, which works offline, else downloaded. Either way
their hash is compared: with the hash that the hub states, and later with the file's name in the cache.
"""

import logging
import re
import sys
import urllib.error
import urllib.request
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import huggingface_hub  # loads its parts when they are used
from huggingface_hub import constants

from dear.backbone.hub_hashes import GIT, SHA256, ContentError, require_hash, require_known
from dear.backbone.hub_missing import known_missing, note_missing
from dear.errors import WeightsError, first_line, printable
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
LONGEST_WAIT = 60  # seconds before a request is tried again, whatever the hub asks for
HOME = "https://huggingface.co"
"""The hub that tokens are of; mirrors lead there."""

# With it the client first asks the hub which variables of the environment to tell it, and believes the answer
# for a day, unchecked: one that it cannot read breaks every download of this user.
constants.HF_HUB_DISABLE_TELEMETRY = True


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
    require_name(repository)
    for file in files:
        cached_path = huggingface_hub.try_to_load_from_cache(
            repository, file, cache_dir=cache_dir, revision=revision
        )
        if isinstance(cached_path, str):
            path = Path(cached_path)
            if revision is not None and GIT.fullmatch(revision) and commit_of(path) not in (revision, None):
                continue  # the client notes what a hub answered to a commit
            require_hash(path, path.resolve().name, f"{file} of {repository} in the hub's cache")
            return path
    return None


def commit_of(path: Path) -> str | None:
    """The commit of a file in the hub's cache; None for any other file."""
    commits = [name for parent, name in pairwise(path.parts) if parent == "snapshots"]
    return commits[-1] if commits and GIT.fullmatch(commits[-1]) else None


def fetch(
    repository: str,
    files: Sequence[str],
    *,
    title: str = "",
    revision: str | None = None,
    sha256: Collection[str] = (),
    safe_only: bool = False,
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

    Raises WeightsError that names the file, ContentError if its hash differs from the hub's or the published,
    MissingError if the repository is known to have none.
    """
    if (path := cached(repository, files, revision)) is not None:
        require_known(path, sha256, repository)
        return path
    if known_missing(repository, files, revision):
        raise MissingError(f"{repository} has no {' and no '.join(files)}.")
    offered = [file for file in files if Path(file).suffix in SAFE or not safe_only]
    try:
        reach()
        path = download(repository, offered, title=title, revision=revision)
    except (ContentError, LimitError):
        raise
    except Exception as error:  # the network, the hub and the disk share no exception class
        note = " Only safetensors are fetched from a repository that a file names."
        note = "" if len(offered) == len(files) else note
        kind = MissingError if isinstance(error, _Lacking) else WeightsError
        raise kind(
            f"cannot download {files[0]} of https://huggingface.co/{repository} ({first_line(error)}).{note} "
            f"Run `hf download {repository}` on a machine with network access and copy its hub cache folder "
            f"to {constants.HF_HUB_CACHE} here."
        ) from error
    require_known(path, sha256, repository)
    return path


def download(
    repository: str,
    files: Sequence[str],
    *,
    title: str = "",
    revision: str | None = None,
    size_limit: str = "tensor_bytes",
    **options: Any,
) -> Path:
    """Download the first of ``files`` that a repository has into the hub's cache, and compare its hash.

    ``size_limit`` is the limit of a file that is no JSON, and ``options`` are those of
    `huggingface_hub.hf_hub_download`. Raises ContentError, LimitError before anything is fetched, and what
    the hub's client raises.
    """
    hub = huggingface_hub.HfApi(endpoint=constants.ENDPOINT, token=options.get("token"))
    asked = revision if revision is not None and GIT.fullmatch(revision) else None
    with checked_answers(repository, "json_bytes"):
        info = hub.model_info(repository, revision=revision, files_metadata=True)
    if asked is not None and info.sha != asked:
        raise ContentError(f"the hub at {constants.ENDPOINT} answers with another commit of {repository}.")
    entries = {entry.rfilename: entry for entry in info.siblings or ()}
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
        with checked_answers(repository, "json_bytes"):
            info = hub.model_info(repository, revision=commit, files_metadata=True)
        stated = _stated_hash(next(entry for entry in info.siblings or () if entry.rfilename == file))
    require_hash(path, stated, f"{file} of {repository}")
    return path


def _stated_hash(entry: Any) -> str:
    """The hash of a file in the hub's list of a repository. Raises ValueError if it states none."""
    stated = entry.lfs.sha256 if entry.lfs is not None else entry.blob_id
    if not (stated and (SHA256.fullmatch(stated) or GIT.fullmatch(stated))):
        raise ValueError(f"the hub states no hash of {entry.rfilename}, so that it cannot be checked")
    return str(stated)


def stated_size(entry: Any, title: str) -> int:
    """The size of a file in the hub's list of a repository, 0 if it states none. Raises ContentError."""
    size = entry.size or 0
    if not (isinstance(size, int) and 0 <= size < 2**63):
        raise ContentError(f"the hub at {constants.ENDPOINT} states no size of the files of {title}.")
    return size


@contextmanager
def checked_answers(title: str, size_limit: str, asked: str | None = None) -> Iterator[None]:
    """Context in which what the hub answers about files is checked before its client uses it: the client
    makes paths of the ETag, the commit and the revision, which lead anywhere unless they are hashes, fetches
    and unpacks without bound, and asks any address that an answer names, with the user's token. ``title``
    names the files, ``size_limit`` is the limit of each, ``asked`` the commit that is asked for.
    """
    from huggingface_hub import file_download
    from huggingface_hub.errors import EntryNotFoundError
    from huggingface_hub.utils import _http

    ask, note = file_download.get_hf_file_metadata, file_download._cache_commit_hash_for_specific_revision
    get: Any = file_download.http_get
    make_client: Any = getattr(_http, "_GLOBAL_CLIENT_FACTORY", None)
    if make_client is None:
        raise WeightsError(
            f"what the hub answers cannot be checked with huggingface_hub {huggingface_hub.__version__}: "
            "install the version in requirements/constraints.txt, or another one from 1.0 on."
        )
    for handler in logging.getLogger("huggingface_hub").handlers:  # it has them since the imports above
        handler.addFilter(_in_one_line)
    fetching = ContextVar("fetching", default=False)

    def checked(*args: Any, **options: Any) -> Any:
        try:
            answer = ask(*args, **options)
        except EntryNotFoundError as error:  # the client notes it by the commit
            headers: Any = getattr(getattr(error, "response", None), "headers", {})
            if GIT.fullmatch(headers.get(constants.HUGGINGFACE_HEADER_X_REPO_COMMIT, "0" * 40)):
                raise
            raise ContentError(f"the hub at {constants.ENDPOINT} states no commit of {title}.") from error
        etag, commit = str(answer.etag), str(answer.commit_hash)
        if not (SHA256.fullmatch(etag) or GIT.fullmatch(etag)) or not GIT.fullmatch(commit):
            raise ContentError(f"the hub at {constants.ENDPOINT} states no hash of {title}: use another.")
        if asked not in (None, commit):
            raise ContentError(f"the hub at {constants.ENDPOINT} answers with another commit of {title}.")
        at_most(size_limit, answer.size or 0, title)
        return answer

    def checked_note(folder: str, revision: str, commit: str) -> None:
        """The client writes the commit to a file called as the revision, which a data set's hub states."""
        if Path(revision).is_absolute() or ".." in Path(revision).parts:
            raise ContentError(f"the hub at {constants.ENDPOINT} states no commit of {title}.")
        note(folder, revision, commit)

    def bounded_get(url: str, temp_file: Any, **options: Any) -> None:
        """Fetch a file, of no more bytes than stated, however often the connection is resumed."""
        most = options.get("expected_size")
        token = fetching.set(True)
        try:
            get(url, _Bounded(temp_file, title, size_limit, most), **options)
        finally:
            fetching.reset(token)

    def bounded(response: Any) -> None:
        """Refuse what is packed; bound an answer: it is kept in memory unless it is a file's content. Bound
        the time that it asks the client to wait.
        """
        for header in ("Retry-After", "RateLimit"):
            if header in response.headers:
                response.headers[header] = re.sub(r"\d+", _short_wait, response.headers[header])
        if response.headers.get("Content-Encoding", "identity").lower() != "identity":
            raise ContentError(f"the hub at {constants.ENDPOINT} packs its answers about {title}.")
        is_file = fetching.get() and response.status_code in (200, 206)
        raw, where = response.iter_raw, f"an answer of the hub about {title}"

        def iter_raw(chunk_size: int | None = None) -> Iterator[bytes]:
            total = values = 0
            for chunk in raw(chunk_size):
                total += len(chunk)
                at_most(size_limit if is_file else "hub_bytes", total, where)
                if not is_file:  # the client parses it, and makes an object of each file in a list
                    values += sum(map(chunk.count, (b",", b"[", b"{", b":")))
                    at_most("hub_values", values, where)
                yield chunk

        response.iter_raw = iter_raw

    def keep_token(request: Any) -> None:
        """Send the user's token to the hub only: an answer may name the address of its next page."""
        if _origin(str(request.url)) not in (_origin(constants.ENDPOINT), _origin(HOME)):
            request.headers.pop("Authorization", None)

    def client() -> Any:
        session = make_client()
        session.headers["Accept-Encoding"] = "identity"
        requests, responses = (session.event_hooks.get(kind, ()) for kind in ("request", "response"))
        session.event_hooks = {"request": [*requests, keep_token], "response": [*responses, bounded]}
        return session

    patches = {
        "get_hf_file_metadata": checked, "_cache_commit_hash_for_specific_revision": checked_note,
        "http_get": bounded_get,
    }  # fmt: skip
    with ExitStack() as stack:
        # The client of Xet asks the address in a header with the user's token, unseen by the checks above.
        if hasattr(constants, "HF_HUB_DISABLE_XET"):
            stack.callback(setattr, constants, "HF_HUB_DISABLE_XET", constants.HF_HUB_DISABLE_XET)
            constants.HF_HUB_DISABLE_XET = True
        stack.callback(huggingface_hub.set_client_factory, make_client)
        huggingface_hub.set_client_factory(client)
        for name, function in patches.items():
            stack.callback(setattr, file_download, name, getattr(file_download, name))
            setattr(file_download, name, function)
        yield


def _in_one_line(record: logging.LogRecord) -> bool:
    """Make what the client logs, such as warnings that the hub sends, a line without control characters."""
    record.msg, record.args = printable(" ".join(record.getMessage().split()))[:500], None
    return True


def _short_wait(seconds: re.Match[str]) -> str:
    short = len(seconds[0]) < 3 and int(seconds[0]) <= LONGEST_WAIT
    return seconds[0] if short else str(LONGEST_WAIT)


def _origin(url: str) -> tuple[str, str | None, int | None]:
    parts = urlsplit(url)
    return parts.scheme, parts.hostname, parts.port or {"http": 80, "https": 443}.get(parts.scheme)


class _Bounded:
    """A file being fetched, that takes no more bytes than its stated size and its limit."""

    def __init__(self, file: Any, title: str, size_limit: str, size: int | None) -> None:
        self.file, self.title, self.size_limit, self.size = file, title, size_limit, size

    def write(self, chunk: bytes) -> int:
        end = self.file.tell() + len(chunk)
        at_most(self.size_limit, end, self.title)
        if self.size is not None and end > self.size:
            raise ContentError(f"the hub at {constants.ENDPOINT} sends more than it states of {self.title}.")
        return int(self.file.write(chunk))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)


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
