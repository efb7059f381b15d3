"""Unpack a zip of a data set into the cache folder, once and atomically."""

import io
import os
import shutil
import stat
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO
from uuid import uuid4

from dear.data.images import decode, video
from dear.data.images.decode import FORMATS
from dear.data.sources import table
from dear.data.sources.folder import enter_wrappers
from dear.data.sources.paths import require_inside
from dear.errors import DataError, OutputError
from dear.limits import require_at_most
from dear.reading.files import CORRECTIONS, is_passed_over, opened, read_bytes
from dear.reading.remote import Address
from dear.text import fingerprint
from dear.writing import temporary_folder

SUFFIXES = (".zip",)
DAMAGED = (zipfile.BadZipFile, zlib.error, NotImplementedError, EOFError, ValueError, OverflowError)
"""What zipfile raises for a damaged or encrypted archive, or one packed in a way that it does not know."""
METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
"""Of packing: their output is bounded, piece by piece."""
UTF_8 = 0x800
"""The flag of a member whose name is in UTF-8."""
LISTS = (*table.SUFFIXES, ".json", ".txt", ".arrow")
"""Suffixes of files that are unpacked in addition to images; all others stay in the zip."""
LONGEST_STEM = 50  # characters of an archive's name in that of its folder, which has at most 255 bytes
MODEST = 2**28
"""Bytes that any archive may unpack to: small ones of flat pictures shrink a hundredfold."""

Members = Mapping[Path, zipfile.ZipInfo]


def unpack(archive: Path, cache: Path) -> tuple[Path, list[str]]:
    """Unpack the images and lists of a zip, unless it was done already; all its folders are made. Returns the
    folder, and the paths of the files that stay in the zip; of what is passed over, folders and images.

    Raises DataError for a zip that is damaged or encrypted, or has a link or a member outside its folder, and
    for a folder in the cache that lacks files of it; LimitError for a zip that unpacks to many times its
    size; OutputError if the cache cannot be written.
    """
    suffixes = (*decode.SUFFIXES, *video.SUFFIXES, *LISTS)
    try:
        target = folder_of([archive], cache)
        opening = opened_whole(archive, is_unpacked=target.is_dir())
        with opening as (content, length), zipfile.ZipFile(content) as file:
            members, passed_over = _members(archive, file.infolist())
            files = {path: info for path, info in members.items() if not info.is_dir()}
            data = {path: info for path, info in files.items() if path.suffix.lower() in suffixes}
            if not data:
                raise DataError(f"{archive} contains no images: pack a folder of images, in {FORMATS}.")
            if not target.is_dir():
                require_modest(sum(info.file_size for info in data.values()), length, archive)
                _unpack_into(archive, target, file, members, data)
            elif not all((target / path).is_file() for path in data):
                raise DataError(
                    f"{target.name} in {target.parent} lacks files of {archive}: remove it, and it is made "
                    "again."
                )
    except (*DAMAGED, OSError) as error:
        raise DataError(f"{archive} is damaged or not a zip ({error}): copy or create it again.") from error
    return enter_wrappers(target), [*passed_over, *(path.as_posix() for path in files if path not in data)]


@contextmanager
def opened_whole(archive: Path, *, is_unpacked: bool = False) -> Iterator[tuple[BinaryIO, int]]:
    """An archive and its length in bytes. One at an address is taken whole before it is unpacked: a server
    may say another length than it has. Raises ReadingError, LimitError.
    """
    if isinstance(archive, Address) and not is_unpacked:
        content = read_bytes(archive)
        yield io.BytesIO(content), len(content)
        return
    with opened(archive) as file:
        yield file, archive.stat().st_size


def require_modest(size: int, length: int, archive: Path) -> None:
    """Raise LimitError for an archive of this length that unpacks to many times as many bytes."""
    if size > MODEST:
        require_at_most("unpacked_ratio", -(-size // max(length, 1)), archive)


def folder_of(archives: Sequence[Path], cache: Path, *how: str) -> Path:
    """Where a zip is unpacked, or several archives as one data set, in this way. Raises OSError."""
    facts = list[str]()
    for archive in archives:
        status = archive.stat()
        numbers = status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns
        name = str(archive) if isinstance(archive, Address) else os.path.realpath(archive)
        facts += [name, *map(str, numbers)]
    return cache / "archives" / f"{archives[0].stem[:LONGEST_STEM]}-{fingerprint(*facts, *how)}"


def _members(
    archive: Path, infos: Sequence[zipfile.ZipInfo]
) -> tuple[dict[Path, zipfile.ZipInfo], list[str]]:
    """The members of a zip by the paths that they had, and the folders and images that are passed over.

    Before it had a flag for UTF-8 a zip said nothing of its names: Info-ZIP and macOS write UTF-8 without the
    flag, which zipfile reads in the encoding of MS-DOS.
    """
    members, passed_over = dict[Path, zipfile.ZipInfo](), dict[str, None]()
    for info in infos:
        if not info.flag_bits & UTF_8:
            with suppress(UnicodeError):
                info.filename = info.filename.encode("cp437").decode("utf-8")
        if "/" not in info.filename:  # Windows' own tools wrote so
            info.filename = info.filename.replace("\\", "/")
        path, where = Path(info.filename), f"{archive}, {info.filename!r:.250}"
        require_inside(where, info.filename)
        faults = {
            "is a link, which is not followed: pack the file itself": stat.S_ISLNK(info.external_attr >> 16),
            "is encrypted: unpack the zip by hand and give the folder": info.flag_bits & 1,
            "is not packed by Deflate: pack it with that": info.compress_type not in METHODS,
            "is in the zip twice: pack it once": path in members and not info.is_dir(),
        }
        if fault := next(filter(faults.get, faults), None):
            raise DataError(f"{where} {fault}.")
        outer = next((end for end, part in enumerate(path.parts, start=1) if is_passed_over(part)), None)
        if outer is None or (outer == len(path.parts) and path.name == CORRECTIONS):
            members[path] = info
        elif outer < len(path.parts) or info.is_dir():
            passed_over["/".join(path.parts[:outer]) + "/"] = None
        elif path.suffix.lower() in decode.SUFFIXES:
            passed_over[path.as_posix()] = None
    return members, [*passed_over]


def _unpack_into(archive: Path, target: Path, file: zipfile.ZipFile, members: Members, data: Members) -> None:
    """Write the data among the members of a zip, and all their folders."""
    with cached_folder(target) as part:
        for path, info in members.items():
            (part / path if info.is_dir() else (part / path).parent).mkdir(parents=True, exist_ok=True)
        for path, info in data.items():
            try:
                with file.open(info) as source, (part / path).open("wb") as sink:
                    shutil.copyfileobj(source, sink)  # zipfile compares it with its stated size and checksum
            except DAMAGED as error:
                where = f"{archive}, {path.as_posix()!r:.250}"
                raise DataError(f"{where} cannot be unpacked ({error}): copy or pack it again.") from error


@contextmanager
def cached_folder(target: Path) -> Iterator[Path]:
    """A folder to fill, which becomes ``target`` at the end, unless another process has made that meanwhile.
    Raises OutputError if it cannot be written.
    """
    try:
        with temporary_folder(target.parent / f"{uuid4().hex}.part") as part:
            part.mkdir(mode=0o700, parents=True)
            yield part
            part.rename(target)
    except OSError as error:
        if not target.is_dir():
            raise OutputError(
                f"cannot unpack into {target.parent}: {error}. Choose another cache folder."
            ) from error
