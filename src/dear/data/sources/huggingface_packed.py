"""Archives in data sets of the Hugging Face hub. The library datasets unpacks eight formats and decodes what
many kinds of members hold, without bounds: here it gets plain tars of images and labels alone.
"""

import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from dear.data.images import raster
from dear.errors import DataError
from dear.reading.files import opened

MEMBERS = (*raster.SUFFIXES, ".cls", ".txt", ".json")
"""Members of a tar: images, and the labels beside them."""
BLOCK = 512
LONGEST = 512
"""Bytes of a member's name: the library compares it with a pattern whose time grows with the square."""
EXTENSION = 4096
"""Bytes of what a tar says of a member apart from its header."""
DIGITS = re.compile(rb" *([0-7]{1,11})[ \0]*")
COMPRESSED = (b"\x1f\x8b", b"BZh", b"\xfd7zXZ", b"\x5d\x00")
"""The first bytes of gzip, bzip2, xz and lzma, which a header of a tar may have too."""
PACKED = (".zip", ".tar", ".tgz", ".gz", ".bz2", ".xz", ".lzma", ".zst", ".lz4", ".7z", ".rar")


@contextmanager
def bounded_archives(repository: str) -> Iterator[None]:
    """Context in which the library unpacks nothing, and reads the tars that are plain."""
    from datasets import DownloadManager
    from datasets.utils.file_utils import ArchiveIterable

    extract: Any = DownloadManager.extract
    members: Any = ArchiveIterable.__dict__["_iter_from_urlpath"]

    def checked(kind: Any, urlpath: str, download_config: Any = None) -> Any:
        require_plain_tar(Path(urlpath), repository)
        return members.__func__(kind, urlpath, download_config)

    DownloadManager.extract = lambda _manager, paths: paths
    ArchiveIterable._iter_from_urlpath = classmethod(checked)
    try:
        yield
    finally:
        DownloadManager.extract = extract
        ArchiveIterable._iter_from_urlpath = members


def require_unpacked(names: Iterable[str], repository: str) -> None:
    """Raise DataError if a file of an image folder is an archive."""
    if packed := [name for name in names if name.lower().endswith(PACKED)]:
        raise DataError(
            f"{repository} has images in {packed[0][-100:]!r}: download it, and give the zip or its folder."
        )


def require_plain_tar(path: Path, repository: str) -> None:
    """Raise DataError unless a file is a tar that is not compressed, of files and folders alone, which
    are images or labels and lie in it as long as it says.
    """
    where = f"an archive of {repository}"
    with opened(path) as file:
        size, at, number, name = os.fstat(file.fileno()).st_size, 0, 0, b""
        while (head := file.read(BLOCK)).strip(b"\0"):
            number += 1
            digits = DIGITS.fullmatch(head[124:136])
            if not _is_header(head) or digits is None or head.startswith(COMPRESSED):
                raise DataError(
                    f"{where} is no plain tar (member {number}): pack it with `tar --format=ustar -cf`."
                )
            length, kind = int(digits[1], 8), head[156:157]
            at += BLOCK + -(-length // BLOCK) * BLOCK
            if at > size:
                raise DataError(f"{where} is not complete (member {number}): copy or pack it again.")
            if kind in (b"L", b"x", b"g"):
                name = _extension(file, kind, length, f"{where}, member {number}") or name
            elif kind in (b"0", b"\0"):
                _require_data(name or _name(head), where)
                name = b""
            elif kind == b"5":
                name = b""
            else:
                raise DataError(f"{where} has a link or a device (member {number}): pack files alone.")
            file.seek(at)
    if not number:
        raise DataError(f"{where} has no members.")


def _is_header(head: bytes) -> bool:
    """True for the header of a tar's member: its checksum is right."""
    digits = DIGITS.fullmatch(head[148:156])
    total = sum(head) - sum(head[148:156]) + 8 * ord(" ")
    return len(head) == BLOCK and digits is not None and int(digits[1], 8) == total


def _name(head: bytes) -> bytes:
    """The name in a header, with its prefix."""
    name, prefix = (head[start:stop].split(b"\0", 1)[0] for start, stop in ((0, 100), (345, 500)))
    return prefix + b"/" + name if prefix and head[257:262] == b"ustar" else name


def _extension(file: BinaryIO, kind: bytes, length: int, where: str) -> bytes:
    """The name that what comes before a header gives its member; empty if it gives none."""
    if length > EXTENSION:
        raise DataError(f"{where} has a name or facts of more than {EXTENSION:,} bytes.")
    content = file.read(length)
    if kind == b"L":
        return content.split(b"\0", 1)[0]
    name, rest = b"", content
    while rest.strip(b"\0"):
        match = re.match(rb"([0-9]{1,4}) ([^= \n]{1,100})=", rest)
        end = int(match[1]) if match else 0
        if match is None or end <= match.end() or end > len(rest) or rest[end - 1 : end] != b"\n":
            raise DataError(f"{where} has facts that are not readable: pack it again.")
        if match[2] == b"size" or match[2].startswith(b"GNU.sparse"):
            raise DataError(f"{where} has another size than its header says: pack it again.")
        if match[2] == b"path":
            name = rest[match.end() : end - 1]
        rest = rest[end:]
    return name


def _require_data(name: bytes, where: str) -> None:
    """Raise DataError for a member that is neither an image nor a label. Hidden ones are passed over."""
    text = name.decode(errors="replace")
    if len(name) > LONGEST:
        raise DataError(f"{where} has a name of more than {LONGEST} bytes: rename it.")
    if not os.path.basename(text).startswith((".", "__")) and Path(text).suffix.lower() not in MEMBERS:
        raise DataError(
            f"{where} has {text[-100:]!r}: only images, .cls, .txt and .json are read from a tar."
        )
