"""Unpack a zip of a data set into the cache folder, once and atomically."""

import lzma
import os
import shutil
import stat
import struct
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple
from uuid import uuid4

from dear.data.images import raster
from dear.data.images.raster import FORMATS
from dear.data.sources import table
from dear.data.sources.folder import enter_wrappers
from dear.data.sources.listing import require_inside
from dear.errors import DataError, OutputError
from dear.limits import at_most
from dear.reading.files import BLOCK, file_size, opened
from dear.reading.isolated import isolated
from dear.writing import temporary_folder

SUFFIXES = (".zip",)
DAMAGED = (
    zipfile.BadZipFile, zlib.error, lzma.LZMAError, struct.error, NotImplementedError, EOFError, ValueError,
)  # fmt: skip
"""What zipfile raises for a damaged or invalid archive."""
UTF_8 = 0x800
"""The flag of a member whose name is in UTF-8."""
LISTS = (*table.SUFFIXES, ".json", ".txt")
"""Files unpacked in addition to images; all others stay in the zip."""
SMALLEST_FILE = 4096  # bytes that a file or a folder takes on a disk, however small its content
LONGEST_NAME = 255  # bytes of a file's name, as on Linux, macOS and Windows
LONGEST_PATH = 1024  # bytes of a path in a zip, which each of its images has before its own
LONGEST_STEM = 50  # characters of a zip's name in that of its folder, 200 bytes at most
SECONDS, BYTES_A_SECOND, MEMORY = 3, 50_000_000, 2**30
"""Seconds of the processor and bytes of memory that the directory of a zip may take, and bytes of the zip for
each further second: 300,000 files take 1.5 s. It is then read once more.
"""
MODEST = 2**28
"""Bytes that any data set may unpack to: small ones of flat pictures shrink a hundredfold."""


class Member(NamedTuple):
    """A file or a folder in a zip, which is no link and lies inside: its path, and where zipfile finds it."""

    path: Path
    is_folder: bool
    info: zipfile.ZipInfo

    @property
    def is_data(self) -> bool:
        """True for an image and for a list of images; all other files stay in the zip."""
        return not self.is_folder and self.path.suffix.lower() in (*raster.SUFFIXES, *LISTS)


class Unpacked(NamedTuple):
    """The folder of what was unpacked, the paths of the files that stay in the zip, and those whose names are
    not in UTF-8.
    """

    folder: Path
    ignored: list[str]
    odd_names: list[str]


def unpack(archive: Path, cache: Path) -> Unpacked:
    """Unpack the images and lists of a zip, unless it was done already; all its folders are made.

    The folder is identified by the zip on the disk: another zip may have the same names, sizes and checksums
    in its directory. Raises DataError for a zip that is damaged or encrypted, or has a link or a member
    outside its folder, and for a folder in the cache that lacks files of it; OutputError if the cache cannot
    be written.
    """
    try:
        _try_directory(archive)
        with opened(archive, links=True) as source, zipfile.ZipFile(source) as file:
            size, infos = os.fstat(source.fileno()).st_size, file.infolist()
            require_modest(archive, SMALLEST_FILE * len(infos), size)  # before each takes longer
            members = _members(archive, infos)
            data = [member for member in members if member.is_data]
            if not data:
                raise DataError(f"{archive} contains no images: pack a folder of images, in {FORMATS}.")
            unpacked = _require_tree(archive, members, size)
            from dear.data.dataset import fingerprint  # loads torch

            target = cache / "archives" / f"{archive.stem[:LONGEST_STEM]}-{fingerprint(*stamp(archive))}"
            if not target.is_dir():
                _unpack_into(target, file, members, unpacked)
            elif any(file_size(target / member.path) != member.info.file_size for member in data):
                raise DataError(f"{target} lacks files of {archive}: remove it, and it is made again.")
    except DAMAGED as error:
        raise DataError(f"{archive} is damaged or not a zip ({error}): copy or create it again.") from error
    except OSError as error:
        raise OutputError(f"cannot unpack into {cache}: {error}. Choose another cache folder.") from error
    files = (member for member in members if not member.is_folder and not member.is_data)
    odd = [member.path.as_posix() for member in members if member.is_data and _in_old_encoding(member.info)]
    return Unpacked(enter_wrappers(target), [member.path.as_posix() for member in files], odd)


def _members(archive: Path, infos: Sequence[zipfile.ZipInfo]) -> list[Member]:
    """The members of a zip under the names that they had, without hidden ones.

    Before it had a flag for UTF-8 a zip said nothing of its names: Info-ZIP and macOS write UTF-8 without the
    flag, which zipfile reads in the encoding of MS-DOS. Zips made by .NET on Windows had backslashes.
    """
    names = [*map(_name, infos)]
    if not any("/" in name for name in names if not name.endswith(("/", "\\"))):
        names = [name.replace("\\", "/") for name in names]
    for info, name in zip(infos, names, strict=True):
        _require_safe(archive, info, name)
    members = [Member(Path(name), name.endswith("/"), info) for info, name in zip(infos, names, strict=True)]
    hidden = (".", "__MACOSX")
    return [member for member in members if not any(part.startswith(hidden) for part in member.path.parts)]


def _name(info: zipfile.ZipInfo) -> str:
    if info.filename != info.orig_filename:  # cut at a zero byte, or from a field for UTF-8 (Python 3.12)
        return info.filename
    if not info.flag_bits & UTF_8:
        with suppress(UnicodeError):
            return info.filename.encode("cp437").decode("utf-8")
    return info.filename


def _in_old_encoding(info: zipfile.ZipInfo) -> bool:
    """True for a name that is not in UTF-8, and is read in the encoding of MS-DOS without a better guess."""
    return not info.flag_bits & UTF_8 and not info.filename.isascii() and _name(info) == info.filename


def _try_directory(archive: Path) -> None:
    """Raise LimitError for a zip whose directory takes long: zipfile copies the rest of a member's extra
    field for every four bytes of it.
    """

    def attempt() -> None:
        with suppress(*DAMAGED), opened(archive, links=True) as source, zipfile.ZipFile(source):
            pass

    seconds = SECONDS + (file_size(archive) or 0) // BYTES_A_SECOND
    isolated(attempt, archive, seconds=seconds, memory=MEMORY)


def _unpack_into(target: Path, file: zipfile.ZipFile, members: Sequence[Member], size: int) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(target.parent).free
    if size > free:
        raise DataError(
            f"{file.filename} unpacks to {size:,} bytes, but {target.parent} has only {free:,} left: "
            "choose another cache folder."
        )
    with temporary_folder(target.parent / f"{uuid4().hex}.part") as part:
        part.mkdir(mode=0o700)
        for member in members:
            path = part / member.path
            (path if member.is_folder else path.parent).mkdir(parents=True, exist_ok=True)
            if member.is_data:
                with path.open("wb") as sink:
                    sink.writelines(_blocks(file, member))
        try:
            part.rename(target)
        except OSError:
            if not target.is_dir():  # otherwise another process has unpacked it meanwhile
                raise


def _blocks(file: zipfile.ZipFile, member: Member) -> Iterator[bytes]:
    """The content of a member. Raises DataError also if the system cannot read it: a damaged zip may name a
    header that is farther than any file is long.
    """
    try:
        with file.open(member.info) as source:
            while block := source.read(BLOCK):
                yield block
    except (*DAMAGED, OSError) as error:
        remedy = "pack" if isinstance(error, NotImplementedError) else "copy or pack"
        where = _where(file.filename, str(member.path))
        raise DataError(f"{where} cannot be unpacked ({error}): {remedy} it again, with Deflate.") from error


def require_modest(source: object, unpacked: int, size: int) -> None:
    """Raise LimitError for content that takes many times the bytes of the data set that it is packed in."""
    if unpacked > MODEST:
        at_most("unpacked_ratio", -(-unpacked // max(size, 1)), source)


def stamp(file: Path) -> tuple[str, ...]:
    """The identity of a file on this disk: its path, its number there, its size and its times. The system
    sets the number, and the last of the times; two files that were unpacked together may have the same.
    """
    facts = file.stat()
    numbers = facts.st_ino, facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns
    return os.path.realpath(file), *map(str, numbers)


def _require_safe(archive: Path, info: zipfile.ZipInfo, name: str) -> None:
    where = _where(archive, info.orig_filename)
    if not name:
        raise DataError(f"{where} has no name: copy or create it again.")
    for spelling in {name, info.orig_filename}:  # the second is not what is written, but a sign of an attack
        require_inside(where, spelling)
    if stat.S_ISLNK(info.external_attr >> 16):
        raise DataError(f"{where} is a link, which is not followed: pack the file itself.")
    # The others are unpacked beyond the stated size before it is compared.
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise DataError(f"{where} is packed by method {info.compress_type}: pack it with Deflate.")
    if info.flag_bits & 1:
        raise DataError(f"{where} is encrypted: unpack the zip by hand and give the folder.")


def _require_tree(archive: Path, members: Sequence[Member], size: int) -> int:
    """The bytes that the data among the members take on a disk with all folders, each `SMALLEST_FILE` at
    least.

    Raises DataError for members that cannot all be files of one folder, LimitError for too many levels, or
    for far more bytes than the zip has.
    """
    paths, folders, unpacked = set[Path](), set[Path](), 0
    for member in members:
        path, is_folder, _ = member
        where = _where(archive, str(path))
        at_most("folder_depth", len(path.parts) - (not is_folder), where)
        if any(len(os.fsencode(part)) > LONGEST_NAME for part in path.parts):
            raise DataError(f"{where} has a name of more than {LONGEST_NAME} bytes: rename it.")
        if len(os.fsencode(path)) > LONGEST_PATH:
            raise DataError(f"{where} has a path of more than {LONGEST_PATH:,} bytes: rename its folders.")
        if not is_folder:
            if path in paths:
                raise DataError(f"{where} is in the zip twice: pack it once.")
            paths.add(path)
        if member.is_data:
            unpacked += max(SMALLEST_FILE, member.info.file_size)
        for folder in (path, *path.parents) if is_folder else path.parents:
            if folder in folders:
                break
            folders.add(folder)
            unpacked += SMALLEST_FILE
        require_modest(archive, unpacked, size)
    if double := next((path for path in paths if path in folders), None):
        where = _where(archive, str(double))
        raise DataError(f"{where} is both a file and a folder: rename one.")
    return unpacked


def _where(archive: object, name: str) -> str:
    """A member of a zip, for messages: the end of a long name."""
    return f"{archive}, {name if len(name) <= LONGEST_NAME else '...' + name[-LONGEST_NAME:]!r}"
