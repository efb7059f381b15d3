"""A zip of a data set, unpacked once into the cache folder, whole or not at all."""

import lzma
import shutil
import stat
import tempfile
import zipfile
import zlib
from pathlib import Path

from dear.data.dataset import fingerprint
from dear.data.images.raster import SUFFIXES
from dear.data.sources.listing import require_inside
from dear.errors import DataError, OutputError
from dear.reading.files import opened

DAMAGED = (zipfile.BadZipFile, zlib.error, lzma.LZMAError, NotImplementedError, EOFError, ValueError)
"""What zipfile raises of an archive that is cut, foreign or changed."""
LISTS = (".json", ".jsonl", ".csv", ".tsv", ".txt")
"""Unpacked beside images; anything else stays in the zip."""


def unpack(archive: Path, cache: Path) -> Path:
    """The folder with the content of a zip, unpacked unless that was done before.

    It is found by the names, sizes and checksums in the zip's directory. Errors: DataError for a zip that
    is damaged, encrypted, or has a member that climbs out or is a link; OutputError for a closed cache.
    """
    try:
        with opened(archive) as source, zipfile.ZipFile(source) as file:
            members = [member for member in file.infolist() if not member.is_dir()]
            for member in members:
                _require_safe(archive, member)
            wanted = [member for member in members if _wanted(member.filename)]
            if not wanted:
                raise DataError(f"{archive} has no images in it.")
            facts = (str(fact) for m in wanted for fact in (m.filename, m.file_size, m.CRC))
            target = cache / "archives" / f"{archive.stem}-{fingerprint(*facts)}"
            if not target.is_dir():
                _unpack_into(target, file, wanted)
    except (
        zipfile.BadZipFile,
        zlib.error,
        lzma.LZMAError,
        NotImplementedError,
        EOFError,
        ValueError,
    ) as error:
        raise DataError(f"{archive} is damaged or no zip ({error}): copy or make it again.") from error
    except OSError as error:
        raise _not_written(cache, error) from error
    return _content(target)


def _unpack_into(target: Path, file: zipfile.ZipFile, members: list[zipfile.ZipInfo]) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    size, free = sum(member.file_size for member in members), shutil.disk_usage(target.parent).free
    if size > free:
        raise DataError(
            f"{file.filename} unpacks to {size:,} bytes, and {target.parent} has {free:,} left: "
            "choose another folder of caches."
        )
    part = Path(tempfile.mkdtemp(dir=target.parent, suffix=".part"))
    try:
        for member in members:
            place = part / member.filename
            place.parent.mkdir(parents=True, exist_ok=True)
            with file.open(member) as source, place.open("wb") as sink:
                shutil.copyfileobj(source, sink)
        try:
            part.rename(target)
        except OSError:
            if not target.is_dir():  # else another process has unpacked it meanwhile
                raise
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _require_safe(archive: Path, member: zipfile.ZipInfo) -> None:
    # zipfile cuts names at a zero byte and turns backslashes only on Windows: the original name is judged.
    require_inside(f"{archive}, {member.orig_filename!r}", member.orig_filename)
    if stat.S_ISLNK(member.external_attr >> 16):
        raise DataError(f"{archive}, {member.filename!r} is a link; links are not followed out of a zip.")
    if member.flag_bits & 1:
        raise DataError(f"{archive} is encrypted: unpack it by hand and give the folder.")


def _wanted(name: str) -> bool:
    path = Path(name)
    hidden = any(part.startswith((".", "__MACOSX")) for part in path.parts)
    return not hidden and path.suffix.lower() in (*SUFFIXES, *LISTS)


def _content(folder: Path) -> Path:
    """The folder itself, or the one folder in it, where the zip packs its content into one."""
    inside = [*folder.iterdir()]
    while len(inside) == 1 and inside[0].is_dir():
        folder = inside[0]
        inside = [*folder.iterdir()]
    return folder


def _not_written(cache: Path, error: OSError) -> OutputError:
    return OutputError(f"cannot unpack into {cache}: {error}. Choose another folder of caches.")
