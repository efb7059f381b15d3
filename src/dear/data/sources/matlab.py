"""MATLAB files before scipy reads their values: numbers, and records of numbers and texts, that are no larger
than the file that states them.
"""

import io
import math
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path

from dear.limits import at_most, limit
from dear.reading.files import ReadingError

HEADER = 128
UINT32, MATRIX, PACKED = 6, 14, 15  # types of elements
STRUCT, TEXT = 2, 4  # classes of matrices
NUMBERS = range(6, 16)
COMPLEX = 0x800
NAMES = frozenset([
    "double", "single", "logical", "struct", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64",
    "uint64",
])  # fmt: skip
"""Classes of variables as scipy calls them. Cells and objects may hold anything, sparse matrices claim any
shape.
"""


def require_plain(content: bytes, path: Path) -> None:
    """Raise ReadingError for a file with a variable of another class, or of more values than it has bytes, of
    which scipy makes an array before it reads one; LimitError for one that unpacks to more than a text.
    """
    from scipy.io import whosmat

    matrices = [*_matrices(content, path)]
    size = sum(len(body) for body in matrices) + len(content)
    for _, shape, name in whosmat(io.BytesIO(content)):
        if name not in NAMES:
            raise ReadingError(
                path, f"it has a variable of the class {name}: only numbers and records may be"
            )
        if min(shape, default=0) < 0 or math.prod(shape) > size:
            raise ReadingError(path, "it has a variable of more values than bytes")
    order = _order(content)
    for body in matrices:
        if body[8:9] and struct.unpack_from(f"{order}I", body, 8)[0] & 0xFF == STRUCT:
            _require_record(body, order, path)


def _order(content: bytes) -> str:
    return ">" if content[HEADER - 2 : HEADER] == b"MI" else "<"


def _matrices(content: bytes, path: Path) -> Iterator[bytes]:
    """The variables, unpacked. They follow each other, each with a type and a length; older files, of
    version 4, have none of these types.
    """
    at, unpacked, allowed, order = HEADER, 0, limit("text_bytes"), _order(content)
    while at + 8 <= len(content):
        kind, length = struct.unpack_from(f"{order}2I", content, at)
        body = content[at + 8 : at + 8 + length]
        if kind == PACKED:
            stream, packed, parts = zlib.decompressobj(), body, list[bytes]()
            while packed and unpacked <= allowed:
                parts.append(stream.decompress(packed, 2**20))
                unpacked += len(parts[-1])
                packed = stream.unconsumed_tail
            at_most("text_bytes", unpacked, path)
            for kind, inner in _elements(b"".join(parts), order, path):
                if kind == MATRIX:
                    yield inner
        elif kind == MATRIX:
            yield body
        at += 8 + length


def _elements(data: bytes, order: str, path: Path) -> Iterator[tuple[int, bytes]]:
    """Types and contents of the elements that fill ``data`` exactly; up to 4 bytes stand in the head."""
    at = 0
    while at + 8 <= len(data):
        kind, length = struct.unpack_from(f"{order}2I", data, at)
        if kind >> 16:
            kind, length, start, end = kind & 0xFFFF, kind >> 16, at + 4, at + 8
        else:
            start, end = at + 8, at + 8 + length + -length % 8
        if start + length > end or end > len(data):
            break
        yield kind, data[start : start + length]
        at = end
    if at != len(data):
        raise ReadingError(path, "its variables are damaged")


def _require_record(body: bytes, order: str, path: Path) -> None:
    """Raise ReadingError unless a struct's fields are numbers and texts. scipy reads on where an element
    ends, whatever the length of what it is in: all must fit exactly.
    """
    elements = [*_elements(body, order, path)]
    _, count = _class_and_count(elements, order, path)
    if len(elements) < 5 or len(elements[3][1]) != 4:
        raise ReadingError(path, "its records are damaged")
    (width,) = struct.unpack(f"{order}I", elements[3][1])
    fields = elements[5:]
    if count > len(body) or count * (len(elements[4][1]) // max(1, width)) != len(fields):
        raise ReadingError(path, "its records do not have the fields that it states")
    for kind, field in fields:
        if kind == MATRIX and not field:  # an empty one
            continue
        parts = [*_elements(field, order, path)] if kind == MATRIX else []
        flags, count = _class_and_count(parts, order, path)
        if flags & 0xFF not in (TEXT, *NUMBERS) or len(parts) != (5 if flags & COMPLEX else 4):
            raise ReadingError(path, "its records hold more than numbers and texts")
        if count > len(field):
            raise ReadingError(path, "it has a field of more values than bytes")


def _class_and_count(elements: list[tuple[int, bytes]], order: str, path: Path) -> tuple[int, int]:
    """The flags of a matrix, in which its class is, and the product of its sides."""
    if len(elements) < 3 or elements[0][0] != UINT32 or len(elements[0][1]) != 8 or len(elements[1][1]) % 4:
        raise ReadingError(path, "its variables are damaged")
    sides = struct.unpack(f"{order}{len(elements[1][1]) // 4}i", elements[1][1])
    if min(sides, default=0) < 0:
        raise ReadingError(path, "its variables are damaged")
    return struct.unpack_from(f"{order}I", elements[0][1])[0], math.prod(sides)
