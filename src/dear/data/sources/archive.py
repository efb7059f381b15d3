"""Unpack a zip of a data set into the cache folder, once and atomically."""

import os
import shutil
import stat
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple
from uuid import uuid4

from dear.data.images import formats
from dear.data.images.formats import FORMATS
from dear.data.sources import table
from dear.data.sources.folder import enter_wrappers
from dear.data.sources.listing import require_inside
from dear.errors import DataError, OutputError
from dear.limits import at_most
from dear.writing import temporary_folder

SUFFIXES = (".zip",)
DAMAGED = (zipfile.BadZipFile, zlib.error, NotImplementedError, EOFError, ValueError, OverflowError)
"""What zipfile raises for a damaged or encrypted archive, or one packed in a way that it does not know."""
UTF_8 = 0x800
"""The flag of a member whose name is in UTF-8."""
LISTS = (*table.SUFFIXES, ".json", ".txt", ".arrow")
"""Suffixes of files that are unpacked in addition to images; all others stay in the zip."""
LONGEST_STEM = 50  # characters of a zip's name in that of its folder, which has at most 255 bytes
MODEST = 2**28
"""Bytes that any zip may unpack to: small ones of flat pictures shrink a hundredfold."""

Members = Mapping[Path, zipfile.ZipInfo]


class Unpacked(NamedTuple):
    """The folder of what was unpacked, the paths of the files that stay in the zip, and those whose names are
    not in UTF-8.
    """

    folder: Path
    ignored: list[str]
    odd_names: list[str]


def unpack(archive: Path, cache: Path) -> Unpacked:
    """Unpack the images and lists of a zip, unless it was done already; all its folders are made.

    Raises DataError for a zip that is damaged or encrypted, or has a link or a member outside its folder, and
    for a folder in the cache that lacks files of it; LimitError for a zip that unpacks to many times its
    size; OutputError if the cache cannot be written.
    """
    from dear.data.dataset import fingerprint  # loads torch

    suffixes = (*formats.SUFFIXES, *LISTS)
    try:
        with zipfile.ZipFile(archive) as file:
            members = _members(archive, file.infolist())
            files = {path: info for path, info in members.items() if not info.is_dir()}
            data = {path: info for path, info in files.items() if path.suffix.lower() in suffixes}
            if not data:
                raise DataError(f"{archive} contains no images: pack a folder of images, in {FORMATS}.")
            facts = archive.stat()
            if (size := sum(info.file_size for info in data.values())) > MODEST:
                at_most("unpacked_ratio", -(-size // facts.st_size), archive)
            numbers = facts.st_ino, facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns
            stamp = fingerprint(os.path.realpath(archive), *map(str, numbers))
            target = cache / "archives" / f"{archive.stem[:LONGEST_STEM]}-{stamp}"
            if not target.is_dir():
                _unpack_into(target, file, members, data)
            elif not all((target / path).is_file() for path in data):
                raise DataError(f"{target} lacks files of {archive}: remove it, and it is made again.")
    except DAMAGED as error:
        raise DataError(f"{archive} is damaged or not a zip ({error}): copy or create it again.") from error
    except OSError as error:
        raise OutputError(f"cannot unpack into {cache}: {error}. Choose another cache folder.") from error
    ignored = [path.as_posix() for path in files if path not in data]
    odd_names = [
        path.as_posix() for path, info in data.items()  # read as by MS-DOS, for want of a better guess
        if not info.filename.isascii() and not info.flag_bits & UTF_8 and info.filename == info.orig_filename
    ]  # fmt: skip
    return Unpacked(enter_wrappers(target), ignored, odd_names)


def _members(archive: Path, infos: Sequence[zipfile.ZipInfo]) -> dict[Path, zipfile.ZipInfo]:
    """The members of a zip by the paths that they had, without hidden ones.

    Before it had a flag for UTF-8 a zip said nothing of its names: Info-ZIP and macOS write UTF-8 without the
    flag, which zipfile reads in the encoding of MS-DOS. Zips made by .NET on Windows had backslashes.
    """
    names = [*map(_name, infos)]
    if not any("/" in name for name in names if not name.endswith(("/", "\\"))):
        names = [name.replace("\\", "/") for name in names]
    members = dict[Path, zipfile.ZipInfo]()
    for info, name in zip(infos, names, strict=True):
        where = f"{archive}, {name!r:.250}"
        for spelling in {name, info.orig_filename}:
            require_inside(where, spelling)
        if stat.S_ISLNK(info.external_attr >> 16):
            raise DataError(f"{where} is a link, which is not followed: pack the file itself.")
        if info.flag_bits & 1:
            raise DataError(f"{where} is encrypted: unpack the zip by hand and give the folder.")
        if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):  # whose output is bounded
            raise DataError(f"{where} is packed by method {info.compress_type}: pack it with Deflate.")
        if not any(part.startswith((".", "__MACOSX")) for part in Path(name).parts):
            if Path(name) in members and not name.endswith("/"):
                raise DataError(f"{where} is in the zip twice: pack it once.")
            info.filename = name
            members[Path(name)] = info
    return members


def _name(info: zipfile.ZipInfo) -> str:
    if info.filename == info.orig_filename and not info.flag_bits & UTF_8:  # Python 3.12 reads a second name
        with suppress(UnicodeError):
            return info.filename.encode("cp437").decode("utf-8")
    return info.filename


def _unpack_into(target: Path, file: zipfile.ZipFile, members: Members, data: Members) -> None:
    """Write the data among the members of a zip, and all their folders."""
    target.parent.mkdir(parents=True, exist_ok=True)
    size, free = sum(info.file_size for info in data.values()), shutil.disk_usage(target.parent).free
    if size > free:
        raise DataError(
            f"{file.filename} unpacks to {size:,} bytes, but {target.parent} has only {free:,} left: "
            "choose another cache folder."
        )
    with temporary_folder(target.parent / f"{uuid4().hex}.part") as part:
        part.mkdir(mode=0o700)
        for path, info in members.items():
            (part / path if info.is_dir() else (part / path).parent).mkdir(parents=True, exist_ok=True)
        for path, info in data.items():
            try:
                with file.open(info) as source, (part / path).open("wb") as sink:
                    shutil.copyfileobj(source, sink)  # zipfile compares it with its stated size and checksum
            except DAMAGED as error:
                where = f"{file.filename}, {path.as_posix()!r:.250}"
                raise DataError(f"{where} cannot be unpacked ({error}): copy or pack it again.") from error
        try:
            part.rename(target)
        except OSError:
            if not target.is_dir():  # otherwise another process has unpacked it meanwhile
                raise
