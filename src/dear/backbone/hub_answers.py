"""What the Hugging Face hub answers, checked before its client believes it."""

import logging
import re
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import huggingface_hub
from huggingface_hub import constants

from dear.backbone.hub_hashes import GIT, SHA256, ContentError
from dear.errors import WeightsError, printable
from dear.limits import at_most

LONGEST_WAIT = 60  # seconds before a request is tried again, whatever the hub asks for
HOME = "https://huggingface.co"
"""The hub that tokens are of; mirrors lead there."""

_changing = threading.RLock()

# With it the client first asks the hub which variables of the environment to tell it, and believes the answer
# for a day, unchecked: one that it cannot read breaks every download of this user.
constants.HF_HUB_DISABLE_TELEMETRY = True


def stated_size(entry: Any, title: str) -> int:
    """The size of a file in the hub's list of a repository, 0 if it states none. Raises ContentError."""
    size = entry.size or 0
    if not (isinstance(size, int) and 0 <= size < 2**63):
        raise ContentError(f"the hub at {constants.ENDPOINT} states no size of the files of {title}.")
    return size


@contextmanager
def checked_answers(title: str, size_limit: str, asked: str | None = None) -> Iterator[None]:
    """Context in which what the hub answers about files, fetched or sent, is checked before its client uses
    it: the client makes paths of the ETag, the commit and the revision, which lead anywhere unless they are
    hashes, fetches and unpacks without bound, asks any address that an answer names, with the user's token,
    and shows its warnings. ``title`` names the files, ``size_limit`` is the limit of each that is fetched,
    ``asked`` the commit that is asked for. The client is that of the process: other threads wait for this
    context to end.
    """
    with _changing, _checked_answers(title, size_limit, asked):
        yield


@contextmanager
def _checked_answers(title: str, size_limit: str, asked: str | None) -> Iterator[None]:
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
        except EntryNotFoundError as error:  # the client would note in its cache that there is no such file
            raise ContentError(
                f"the hub at {constants.ENDPOINT} lists {title} and does not send it: try again later."
            ) from error
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
        stack.callback(setattr, warnings, "showwarning", warnings.showwarning)
        warnings.showwarning = partial(_shown_in_one_line, warnings.showwarning)
        # The client of Xet asks the addresses in answers by itself, unseen by the checks above: without it,
        # a file is fetched and sent as one of Git LFS.
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
    record.msg, record.args = _line(record.getMessage()), None
    return True


def _shown_in_one_line(
    show: Callable[..., None], message: Warning | str, *place: Any, **options: Any
) -> None:
    """Show a Python warning likewise: what the hub says of a model card becomes one."""
    line = _line(str(message))
    show(message if line == str(message) else UserWarning(line), *place, **options)


def _line(text: str) -> str:
    return printable(" ".join(text.split()))[:500]


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
