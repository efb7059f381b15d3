"""The first directory of a TIFF, which says where its picture lies: refused where Pillow and libtiff would
read far more for it than the file holds. Format: TIFF 6.0, section 2; BigTIFF has wider numbers.
"""

import struct
from collections.abc import Iterator
from typing import Final, Literal, NamedTuple

BIG: Final = (b"+\0", b"\0+")
MAX_TAGS: Final = 2**16  # as many as the older form can have
COMPRESSION, SHORT, JPEGS = 259, 3, (6, 7)  # a tag, its type, and its values
BYTE_COUNTS: Final = (279, 325)  # of strips, and of tiles
SIZES: Final = (256, 257, 322, 323)  # of the picture, and of its tiles
DIRECTORIES: Final = (34665, 34853, 40965)  # EXIF, GPS and interoperability
BYTE: Final = 1
NUMBERS: Final = {BYTE: "B", SHORT: "H", 4: "I", 16: "Q"}
"""Codes of struct for types."""
BYTES: Final = (BYTE, 2, 7)  # types that are read as they are
RATIONAL: Final = (5, 10)
MAX_RATIONALS, MAX_VALUES = 1000, 2**20
"""Values of a tag: Pillow makes an object of each."""
SPARE: Final = 2**20


class Entry(NamedTuple):
    """An entry: where it stands, its tag, the type and number of its values, and where these, or their place,
    stand.
    """

    at: int
    tag: int
    kind: int
    values: int
    start: int


class Directory:
    """The entries of the first directory. Of several of a tag Pillow takes the last, libtiff the first."""

    def __init__(self, content: bytes) -> None:
        self.content = content
        self.order: Literal["little", "big"] = "little" if content[:1] == b"I" else "big"
        self.head, self.width, self.wide = (8, 20, 8) if content[2:4] in BIG else (2, 12, 4)

    def number(self, at: int, size: int) -> int:
        return int.from_bytes(self.content[at : at + size], self.order)

    def __iter__(self) -> Iterator[Entry]:
        first, wide = self.number(self.wide, self.wide), self.wide
        start = first + self.head
        for at in range(start, start + self.width * min(self.number(first, self.head), MAX_TAGS), self.width):
            yield Entry(
                at, self.number(at, 2), self.number(at + 2, 2), self.number(at + 4, wide), at + 4 + wide
            )

    def require_modest(self) -> None:
        """Raise ValueError for too many tags, values of a tag or bytes of strips and tiles, which several may
        share: libtiff copies those of each; and for sizes of which it may have others than Pillow.
        """
        if self.number(self.number(self.wide, self.wide), self.head) > MAX_TAGS:
            raise ValueError(f"it has more than {MAX_TAGS:,} tags")
        counted = set[int]()
        for entry in self:
            maximum = MAX_RATIONALS if entry.kind in RATIONAL else MAX_VALUES
            if entry.kind not in BYTES and entry.values > maximum:
                raise ValueError(f"its tag {entry.tag} has {entry.values:,} values")
            if entry.tag in BYTE_COUNTS + SIZES:
                if entry.tag in counted:
                    raise ValueError(f"its tag {entry.tag} is there twice")
                counted.add(entry.tag)
            if entry.tag in SIZES and (entry.kind not in NUMBERS or entry.values != 1):
                raise ValueError(f"its tag {entry.tag} is no size")  # which libtiff may read and Pillow not
            if entry.tag in BYTE_COUNTS and self._sum(entry) > 4 * len(self.content) + SPARE:
                raise ValueError("it contains far more data than its picture needs")

    def _sum(self, entry: Entry) -> int:
        """The sum of an entry's values. Raises ValueError for values beyond the file."""
        if entry.kind not in NUMBERS:
            raise ValueError(f"its tag {entry.tag} has the type {entry.kind}")
        code = NUMBERS[entry.kind]
        size = entry.values * struct.calcsize(f"<{code}")
        start = entry.start if size <= self.wide else self.number(entry.start, self.wide)
        if start + size > len(self.content):
            raise ValueError(f"the values of its tag {entry.tag} lie beyond it")
        if entry.kind == BYTE:  # there may be as many as the file has bytes
            return sum(memoryview(self.content)[start : start + size])
        order = "<" if self.order == "little" else ">"
        return sum(struct.unpack_from(f"{order}{entry.values}{code}", self.content, start))

    def require_few_scans(self, scans: int) -> None:
        """Raise ValueError for more scans of JPEGs than a strip or tile has components, if each strip has one
        of its own, and for as many in all if several share one.
        """
        parts = [entry for entry in self if entry.tag in BYTE_COUNTS]
        shared = sum(map(self._sum, parts)) > len(self.content)
        if scans > 4 * (1 if shared else sum(entry.values for entry in parts)):
            raise ValueError("it holds JPEGs of many scans: save it with another compression")

    def may_hold_jpegs(self) -> bool:
        """Whether an entry says so; one of another form than the usual is taken for it."""
        for entry in self:
            if entry.tag == COMPRESSION:
                usual = (entry.kind, entry.values) == (SHORT, 1)
                if not usual or self.number(entry.start, 2) in JPEGS:
                    return True
        return False

    def hidden(self) -> bytes:
        """The content without the directories of EXIF, GPS and interoperability, which Pillow reads with all
        their values: their tags are those before them, which have no meaning.
        """
        content = bytearray()
        for entry in self:
            if entry.tag in DIRECTORIES:
                content = content or bytearray(self.content)
                content[entry.at : entry.at + 2] = (entry.tag - 1).to_bytes(2, self.order)
        return bytes(content) or self.content
