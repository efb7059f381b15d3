"""Files that are not on this machine: an `Address` is a path whose bytes fsspec fetches.

Who may name one: the user, or a table (`dear.data.sources.table` says which). Bytes are fetched up to a
limit, nothing is written, and a web server cannot send a request on to another machine of the local network.
"""

import asyncio
import ipaddress
import os
import re
import socket
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path
from typing import IO, Any, Final, NamedTuple, Self

from dear.errors import DataError, first_line, installation

ADDRESS: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+)://")
WEB: Final = frozenset(["http", "https"])
SCHEMES: Final = WEB | {
    "abfs", "abfss", "adl", "az", "ftp", "gcs", "gs", "hdfs", "hf", "memory", "oci", "oss", "s3", "s3a",
    "sftp", "webhdfs",
}  # fmt: skip
"""Of stores and servers. What fsspec opens beyond these wraps other files, or reads this machine's."""
CHUNK = 2**20  # bytes that are taken of a web server at a time
CHANGES: Final = ("ETag", "etag", "md5Hash", "LastModified", "last_modified", "mtime", "updated", "created")
"""What stores say of a file that is another after each change."""


class ReadingError(DataError):
    """A file, here or at an address, that is missing or malformed.

    Attributes:
        reason: what is wrong, without the file name and the full stop, for callers that add to it.
        missing: whether the file does not exist.
    """

    def __init__(self, where: object, reason: str, *, missing: bool = False) -> None:
        self.reason, self.missing = reason.rstrip("."), missing
        super().__init__(f"{where}: {self.reason}.")


class Stamp(NamedTuple):
    """The bytes of a file, -1 if the server does not say, and a number that changes with its content."""

    size: int
    change: int


class Tree:
    """The files below a folder, from one listing: stamps by relative path, names of entries by folder."""

    def __init__(self, top: str, stamps: Mapping[str, Stamp]) -> None:
        self.top, self.stamps = top, stamps
        self.folders: dict[str, tuple[dict[str, None], list[str]]] = {"": ({}, [])}
        for path in stamps:
            parent, _, name = path.rpartition("/")
            self._folder(parent)[1].append(name)

    def _folder(self, path: str) -> tuple[dict[str, None], list[str]]:
        if path not in self.folders:
            parent, _, name = path.rpartition("/")
            self._folder(parent)[0][name] = None
            self.folders[path] = ({}, [])
        return self.folders[path]

    def relative(self, address: str) -> str | None:
        """The path of an address below the top; None for one elsewhere."""
        if address == self.top:
            return ""
        within = address.removeprefix(f"{self.top}/")
        return None if within == address else within


class Address(type(Path())):  # type: ignore[misc]
    """The address of a file or folder, such as s3://bucket/photos: it reads like a path, and nothing is
    written to it. Its methods raise FileNotFoundError for what is missing, and ReadingError for whatever else
    a store says, or if its package is missing.
    """

    tree: Tree | None = None

    def __str__(self) -> str:
        return str(super().__str__()).replace(":/", "://", 1)

    def __truediv__(self, key: str | os.PathLike[str]) -> Self:
        child: Self = super().__truediv__(key)
        child.tree = self.tree
        return child

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (str(self),)

    @property
    def scheme(self) -> str:
        return str(self).partition("://")[0].lower()

    @property
    def place(self) -> str:
        """Its scheme and its bucket or host."""
        return "/".join(str(self).split("/")[:3]).lower()

    def listed(self) -> Self:
        """The same folder with all that is below it, from one listing; what is made by / of it knows that."""
        with _telling(self):
            system, path = self._open_system()
            top, stamps = path.rstrip("/"), dict[str, Stamp]()
            for name, info in system.find(path, detail=True).items():
                if info["type"] == "file" and name != top and not name.endswith("/"):
                    stamps[name[len(top) :].lstrip("/")] = _stamp(info)
        folder = type(self)(str(self))
        folder.tree = Tree(str(self), stamps)
        return folder

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        """Its kind and size; the time of change is a number that is another after each change."""
        del follow_symlinks
        within = None if self.tree is None else self.tree.relative(str(self))
        if self.tree is not None and within is not None:
            if within in self.tree.folders:
                return _status(stat.S_IFDIR, Stamp(0, 0))
            if within not in self.tree.stamps:
                raise FileNotFoundError(2, os.strerror(2), str(self))
            return _status(stat.S_IFREG, self.tree.stamps[within])
        with _telling(self):
            system, path = self._open_system()
            info = system.info(path)
        return _status(stat.S_IFDIR if info["type"] == "directory" else stat.S_IFREG, _stamp(info))

    def exists(self, *, follow_symlinks: bool = True) -> bool:
        """Whether it is there."""
        del follow_symlinks
        try:
            self.stat()
        except FileNotFoundError:
            return False
        return True

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:
        """Whether it is a folder; a web server has none."""
        del follow_symlinks
        return self.scheme not in WEB and self.exists() and stat.S_ISDIR(self.stat().st_mode)

    def is_file(self, *, follow_symlinks: bool = True) -> bool:
        """Whether it is a file."""
        del follow_symlinks
        return self.exists() and stat.S_ISREG(self.stat().st_mode)

    def is_symlink(self) -> bool:
        """No store has links."""
        return False

    def is_absolute(self) -> bool:
        """Whether it begins with a scheme; what `relative_to` gives does not."""
        return is_address(str(self))

    def resolve(self, strict: bool = False) -> Self:
        """Itself."""
        del strict
        return self

    absolute = resolve

    def iterdir(self) -> Iterator[Self]:
        """Its entries."""
        _, folders, files = next(self.walk_tree())
        yield from (self / name for name in (*folders, *files))

    def glob(self, pattern: str, **_: Any) -> Iterator[Self]:
        """Its entries whose names match a pattern."""
        return (path for path in self.iterdir() if path.match(pattern))

    def walk_tree(self) -> Iterator[tuple[Self, list[str], list[str]]]:
        """As `os.walk`, from one listing."""
        folder = self if self.tree is not None else self.listed()
        assert folder.tree is not None
        within = folder.tree.relative(str(self))
        folders, files = folder.tree.folders.get("" if within is None else within, ({}, []))
        names = sorted(folders)
        yield folder, names, sorted(files)
        for name in names:
            yield from (folder / name).walk_tree()

    def open(self, mode: str = "r", *_: Any, **__: Any) -> IO[Any]:
        """The file, for reading bytes at any position."""
        if mode != "rb":
            raise self._no_writing()
        with _telling(self):
            system, path = self._open_system()
            file: IO[Any] = system.open(path, "rb")
            return file

    def fetch(self, most: int) -> bytes:
        """Its content by one request, of which no more than ``most`` bytes are taken."""
        with _telling(self):
            system, path = self._open_system()
            if self.scheme not in WEB:
                content: bytes = system.cat_file(path, start=0, end=most)
                return content
            parts, left = list[bytes](), most
            with system.open(path, "rb", block_size=0) as file:  # as it comes: ranges need not be served
                while left > 0 and (part := file.read(min(CHUNK, left))):
                    parts.append(part)
                    left -= len(part)
            return b"".join(parts)

    def mkdir(self, *_: Any, **__: Any) -> None:
        """Raises ReadingError."""
        raise self._no_writing()

    def _no_writing(self) -> ReadingError:
        return ReadingError(self, "results are written on this machine: give a local path")

    def _open_system(self) -> tuple[Any, str]:
        """The file system, which keeps no listings, and the path in it."""
        from fsspec.core import url_to_fs

        options: dict[str, Any] = {"use_listings_cache": False}
        if self.scheme in WEB:
            options["get_client"] = _web_client
        try:
            system, path = url_to_fs(str(self), **options)
        except ImportError as error:  # fsspec says which package it is
            hint = installation("remote") if self.scheme in WEB else first_line(error)
            raise ReadingError(self, f"{self.scheme}:// needs a package: {hint}") from error
        return system, str(path)


def is_address(text: object) -> bool:
    """Whether a path is an address: a pathlib path has no // in it, so that no name of a folder is one."""
    return isinstance(text, Address) or (isinstance(text, str) and ADDRESS.match(text) is not None)


def as_path(text: str | os.PathLike[str]) -> Path:
    """A path, which is an `Address` if the text is one. Raises DataError for one that is not read."""
    if isinstance(text, Path):
        return text
    text = os.fspath(text)
    if (match := ADDRESS.match(text)) is None:
        return Path(text)
    scheme, shown = match[1].lower(), text[:100]
    if scheme == "file":
        raise DataError(f"{shown} is on this machine: give its path, without file://.")
    if scheme not in SCHEMES or "::" in text:
        raise DataError(f"{shown}: no such address is read: give s3://, gs://, https:// or another store.")
    address = Address(scheme + text[len(scheme) :])
    if str(address) != scheme + text.rstrip("/")[len(scheme) :] or not text[match.end() :].strip("/"):
        raise DataError(f"{shown}: an address has a host or bucket, and no empty or . part in its path.")
    return address


def within(folder: Path, path: str) -> Path:
    """The file that a list has as ``path``: an address, or a path relative to the folder of the list."""
    return as_path(path) if is_address(path) else folder / path


def _stamp(info: Mapping[str, Any]) -> Stamp:
    size, changes = info.get("size"), [str(info[name]) for name in CHANGES if info.get(name)]
    digest = blake2b("\n".join(changes).encode(), digest_size=7).digest()
    return Stamp(-1 if size is None else int(size), int.from_bytes(digest, "big"))


def _status(kind: int, stamp: Stamp) -> os.stat_result:
    """What `os.stat` would say; in nanoseconds, the time is the number of the content."""
    seconds = (0, 0, 0)
    times = {"st_mtime_ns": stamp.change, "st_ctime_ns": stamp.change}
    return os.stat_result((kind | 0o444, 0, 0, 1, 0, 0, stamp.size, *seconds), times)


@contextmanager
def _telling(address: Address) -> Iterator[None]:
    """What stores raise, as one line."""
    try:
        yield
    except (DataError, MemoryError):
        raise
    except FileNotFoundError as error:
        cause = error.__cause__  # fsspec takes whatever a web server does for a missing file
        is_missing = isinstance(cause, FileNotFoundError) or getattr(cause, "status", None) in (404, 410)
        if address.scheme in WEB and cause is not None and not is_missing:
            raise ReadingError(address, first_line(cause)) from error
        raise FileNotFoundError(2, os.strerror(2), str(address)) from error
    except Exception as error:  # stores have exceptions of their own
        raise ReadingError(address, first_line(error)) from error


async def _web_client(**options: Any) -> Any:
    """The client of fsspec for web servers, which refuses redirects into the local network."""
    import aiohttp

    trace = aiohttp.TraceConfig()
    trace.on_request_redirect.append(_check_redirect)
    return aiohttp.ClientSession(trace_configs=[trace], **options)


async def _check_redirect(_session: Any, _context: Any, request: Any) -> None:
    """Raise OSError for a redirect to another host that has an address of a local network."""
    from yarl import URL

    target = request.url.join(URL(request.response.headers.get("Location", "")))
    if target.host is None or target.host == request.url.host:
        return
    found = await asyncio.get_running_loop().getaddrinfo(target.host, target.port, type=socket.SOCK_STREAM)
    hosts = {str(each[4][0]).partition("%")[0] for each in found}
    if not all(ipaddress.ip_address(host).is_global for host in hosts):
        raise OSError(f"it redirects to {target.host} in a local network, which is refused")
