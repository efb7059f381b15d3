"""The pages of an index's SQLite file, which may be a stranger's: each is part of one tree, once.

SQLite follows the pages that a file names, however often they are named: a file of 50 kB may so hold more
entries than can ever be read, or values of gigabytes. In a file that passes here, no byte is part of two
values, so that a walk through a tree reads no more than the file has bytes. An index may still name one row
of its table again and again: the caller reads rows through it once, or bounds their number and size.
Format: sqlite.org/fileformat2.html.
"""

import os
from collections.abc import Iterator
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from jaxtyping import Int, UInt8

from dear.retrieval.results import opens_no_more

HEADER: Final = 100  # bytes of the file's header, at the start of the first page
MAGIC: Final = b"SQLite format 3\0"
ROLLBACK: Final = b"\1\1"
"""The versions of a file without a write-ahead log."""
INDEX_PARENT, TABLE_PARENT, INDEX, TABLE = 2, 5, 10, 13
PARENTS: Final = (INDEX_PARENT, TABLE_PARENT)
LEVELS: Final = 20  # of a tree; SQLite has the same bound
VARINT: Final = 9  # bytes of a number of variable length
LENGTH_BYTES, LARGEST = 5, 2**31 - 1
"""Bytes of a value's length, and the largest. SQLite keeps the last 32 bits of a length, and seven bits of
its ninth byte: it reads a longer one as another number.
"""
CONSTANTS: Final = {0: None, 8: 0, 9: 1}  # types of values without bytes
LARGEST_WIDTH: Final = 4  # bytes of a page's number; the type of a number of so many bytes is how many
UTF_8: Final = 1  # the number of the encoding; without tables it is 0
Numbers = Int[np.ndarray, "number"]


class PagesError(Exception):
    """What is wrong with the pages of a file."""


class Tree(NamedTuple):
    """A tree: the number of its entries, and the bytes of the largest."""

    entries: int
    largest: int


class Definition(NamedTuple):
    """A row of the list of tables (section 2.6): ``sql`` is None for an index that SQLite makes itself."""

    kind: str
    name: str
    table: str
    root: int
    sql: str | None


class _Content(NamedTuple):
    """What some pages of a tree have: the numbers of their children, the first pages of values that go on
    elsewhere, the number of entries, and the bytes of the largest.
    """

    children: Numbers
    overflows: Numbers
    entries: int
    largest: int


class Pages:
    """The pages of a SQLite file, kept open: whoever closes a file ends all locks of the process on it.

    Raises PagesError for a file of another form, or whose first page, which lists the tables, is not all of
    that list.

    Attributes:
        definitions: The list of tables. SQLite reads some of those that it lists as soon as it is asked about
            any, so the list is read here.
    """

    def __init__(self, path: Path) -> None:
        # First all that `close` needs.
        self.pages: UInt8[np.ndarray, "page byte"] = np.zeros((0, 0), dtype=np.uint8)
        self.mapped: mmap | None = None
        self.file: int | None = None
        self.file = os.open(path, os.O_RDONLY)
        self.size = os.fstat(self.file).st_size
        self.definitions: list[Definition] = []
        if not self.size:
            return
        try:
            self.mapped = mmap(self.file, self.size, access=ACCESS_READ)
        except (OSError, ValueError) as error:
            if opens_no_more(error):
                raise
            raise PagesError(f"its {self.size:,} bytes cannot be read ({error})") from error
        head = self.mapped[:HEADER]
        page = int.from_bytes(head[16:18], "big")
        page = 65_536 if page == 1 else page
        if not head.startswith(MAGIC) or page < 512 or page & (page - 1) or self.size % page:
            raise PagesError("it is not a SQLite file of whole pages")
        # Bytes 48 to 51 are the pages that SQLite would keep in memory: by default 2 MB of them.
        if head[18:20] != ROLLBACK or head[20] or any(head[48:56]):
            raise PagesError("its pages have another form than those of an index")
        # SQLite takes the pages beyond the number in the header as free, if the header is of its last change.
        if int.from_bytes(head[28:32], "big") != self.size // page or head[24:28] != head[92:96]:
            raise PagesError("it has another number of pages than it says")
        if int.from_bytes(head[56:60], "big") > UTF_8:
            raise PagesError("its text is not in UTF-8")
        self.pages = np.frombuffer(self.mapped, dtype=np.uint8).reshape(-1, page)
        self.taken = np.zeros(len(self.pages) + 1, dtype=bool)
        first = self._read(np.array([1]))
        if len(first.children) or len(first.overflows):
            raise PagesError("its list of tables has more than a page")
        self.definitions = self._definitions(first.entries)

    def __del__(self) -> None:
        self.close()

    def close(self) -> None:
        """Close the file, after the connection to it."""
        self.pages = self.pages[:0].copy()  # the mapped file can then be closed
        if self.mapped is not None:
            self.mapped.close()
        if self.file is not None:
            os.close(self.file)
            self.file = None

    def tree(self, root: int, largest_entry: int = LARGEST) -> Tree:
        """The size of the tree with this root. Raises PagesError for a larger entry, and unless its pages are
        its alone, and there once.
        """
        entries, largest, level = 0, 0, self._take(np.array([root], dtype=np.int64))
        for _ in range(LEVELS):
            if not len(level):
                return Tree(entries, largest)
            content = self._read(level)
            if content.largest > largest_entry:
                raise PagesError(f"it has a row of {content.largest:,} bytes")
            overflows = content.overflows
            for _ in range(content.largest // (self.pages.shape[1] - 4) + 1):
                if not len(overflows):
                    break
                following = self._number(self._take(overflows), np.zeros_like(overflows), 4)
                overflows = following[following > 0]
            if len(overflows):
                raise PagesError("one of its values has more pages than it fills")
            entries, largest = entries + content.entries, max(largest, content.largest)
            level = self._take(content.children)
        raise PagesError("its trees have too many levels")

    def require_own_free_pages(self) -> None:
        """Raise PagesError unless the free pages (section 1.5), which SQLite writes to before any other, are
        part of no tree, and each is listed once. Call it after `tree` has read all trees.
        """
        if self.mapped is None:
            return
        trunk = int.from_bytes(self.mapped[32:36], "big")
        listed = [np.zeros(0, dtype=np.int64)]
        for _ in range(len(self.pages)):
            if not trunk:
                break
            page = self._take(np.array([trunk], dtype=np.int64))
            count = int(self._number(page, np.array([4]), 4)[0])
            if 8 + 4 * count > self.pages.shape[1]:
                raise PagesError("its list of free pages lists more than it holds")
            listed.append(self._number(np.repeat(page, count), 8 + 4 * np.arange(count), 4))
            trunk = int(self._number(page, np.array([0]), 4)[0])
        self._take(np.concatenate(listed))

    def _definitions(self, count: int) -> list[Definition]:
        """The rows of the list of tables, which the first page holds."""
        page = np.ones(count, dtype=np.int64)
        if self.pages[0, HEADER] != TABLE:
            raise PagesError("its list of tables is no table")
        length, key = self._varint(page, self._number(page, HEADER + 8 + 2 * np.arange(count), 2))
        _, start = self._varint(page, key)
        definitions = list[Definition]()
        for begin, end in zip(start.tolist(), (start + length).tolist(), strict=True):
            match _record(self.pages[0, begin:end].tobytes()):
                case [str(kind), str(name), str(table), int(root), (str() | None) as sql]:
                    definitions.append(Definition(kind, name, table, root, sql))
                case _:
                    raise PagesError("its list of tables has rows of another form")
        return definitions

    def _take(self, numbers: Numbers) -> Numbers:
        """The pages of these numbers, from 1, none of which was taken before."""
        if ((numbers < 2) | (numbers > len(self.pages))).any():
            raise PagesError("it names a page that it does not have")
        if len(np.unique(numbers)) < len(numbers) or self.taken[numbers].any():
            raise PagesError("several of its pages name the same one")
        self.taken[numbers] = True
        return numbers

    def _read(self, numbers: Numbers) -> _Content:
        """What pages of a tree have."""
        width = self.pages.shape[1]
        start = np.where(numbers == 1, HEADER, 0)
        kind = self._number(numbers, start, 1)
        parent = np.isin(kind, PARENTS)
        if not (parent | (kind == INDEX) | (kind == TABLE)).all():
            raise PagesError("it names a page that is none of a tree")
        count, first = self._number(numbers, start + 3, 2), start + np.where(parent, 12, 8)
        if (first + 2 * count > width).any():
            raise PagesError("one of its pages lists more than it holds")
        children = [self._number(numbers[parent], start[parent] + 8, 4)]
        overflows, largest = [np.zeros(0, dtype=np.int64)], 0
        # A part of the pages at a time: their cells take some hundred bytes each here.
        for part in self._parts(count):
            in_page = np.repeat(np.arange(part.start, part.stop), count[part])
            offset = np.arange(len(in_page)) - np.repeat(np.cumsum(count[part]) - count[part], count[part])
            content = self._cells(numbers, kind, first + 2 * count, in_page, first[in_page] + 2 * offset)
            children.append(content.children)
            overflows.append(content.overflows)
            largest = max(largest, content.largest)
        entries = int(count[kind != TABLE_PARENT].sum())
        return _Content(np.concatenate(children), np.concatenate(overflows), entries, largest)

    @staticmethod
    def _parts(count: Numbers, max_cells: int = 200_000) -> Iterator[slice]:
        start = total = 0
        for index, cells in enumerate(count.tolist()):
            if total + cells > max_cells and index > start:
                yield slice(start, index)
                start, total = index, 0
            total += cells
        if start < len(count):
            yield slice(start, len(count))

    def _cells(
        self, numbers: Numbers, kind: Numbers, end: Numbers, in_page: Numbers, pointer: Numbers
    ) -> _Content:
        """What cells have: of each, the index of its page is given, and where in it the cell's place stands.
        Raises PagesError unless the cells of a page lie in it, side by side.
        """
        width, page, of = self.pages.shape[1], numbers[in_page], kind[in_page]
        at = self._number(page, pointer, 2)
        if (at < end[in_page]).any():
            raise PagesError("the values of one of its pages lie where it lists them")
        inner = np.isin(of, PARENTS)
        children = self._number(page[inner], at[inner], 4)
        start = at + np.where(inner, 4, 0)
        payload, value = self._varint(page, start)
        with_payload = of != TABLE_PARENT  # what that has first is a key
        if (with_payload & ((value - start > LENGTH_BYTES) | (payload > min(self.size, LARGEST)))).any():
            raise PagesError("one of its values claims to be larger than the file")
        _, after_key = self._varint(page, value)  # of a table's row
        value, payload = np.where(of == TABLE, after_key, value), np.where(with_payload, payload, 0)
        # How much of a value lies in its page (section 1.6).
        max_local = np.where(of == TABLE, width - 35, (width - 12) * 64 // 255 - 23)
        min_local = (width - 12) * 32 // 255 - 23
        surplus = min_local + (payload - min_local) % (width - 4)
        goes_on = payload > max_local
        local = np.where(goes_on, np.where(surplus <= max_local, surplus, min_local), payload)
        stop = value + local + np.where(goes_on, 4, 0)
        order = np.argsort(in_page * width + at)
        together = in_page[order[1:]] == in_page[order[:-1]]
        if (stop > width).any() or (together & (at[order[1:]] < stop[order[:-1]])).any():
            raise PagesError("the values of one of its pages overlap")
        overflows = self._number(page[goes_on], (value + local)[goes_on], 4)
        return _Content(children, overflows, len(at), int(payload.max(initial=0)))

    def _number(self, page: Numbers, at: Numbers, width: int) -> Numbers:
        """Big-endian numbers of so many bytes, in pages, at offsets. Raises PagesError beyond a page."""
        if (at + width > self.pages.shape[1]).any():
            raise PagesError("the values of one of its pages go beyond it")
        number = np.zeros(len(page), dtype=np.int64)
        for byte in range(width):
            number = number << 8 | self.pages[page - 1, at + byte]
        return number

    def _varint(self, page: Numbers, at: Numbers) -> tuple[Numbers, Numbers]:
        """Numbers of variable length, and where each ends; those above 2^40 are 2^40."""
        number, open_, end = np.zeros(len(page), dtype=np.int64), np.ones(len(page), dtype=bool), at.copy()
        for index in range(VARINT):
            inside = np.minimum(end, self.pages.shape[1] - 1)
            byte: UInt8[np.ndarray, number] = self.pages[page - 1, inside]
            bits = 8 if index == VARINT - 1 else 7
            shifted = number << bits | (byte if bits == 8 else byte & 0x7F)
            number = np.where(open_, np.minimum(shifted, 2**40), number)
            end = end + open_
            open_ = open_ & (byte >= 0x80)
            if not open_.any():
                break
        return number, end


def _record(content: bytes) -> list[int | str | None]:
    """The values of a row (section 2.1): NULL, whole numbers and texts. Raises PagesError for others."""
    stop, at = _short(content, 0)
    types, values = list[int](), list[int | str | None]()
    while at < stop:
        kind, at = _short(content, at)
        types.append(kind)
    filled = at == stop
    for kind in types:
        if kind in CONSTANTS:
            values.append(CONSTANTS[kind])
        elif kind <= LARGEST_WIDTH:
            values.append(int.from_bytes(content[at : at + kind], "big", signed=True))
            at += kind
        elif kind >= 13 and kind % 2:
            width = (kind - 13) // 2
            values.append(content[at : at + width].decode("utf-8", "replace"))
            at += width
        else:
            raise PagesError("its list of tables has values of another type")
    if not filled or at != len(content):
        raise PagesError("a row of its list of tables is not all of its values")
    return values


def _short(content: bytes, at: int) -> tuple[int, int]:
    """A number of variable length, of two bytes at most, and where it ends."""
    number = content[at : at + 2]
    if len(number) > 0 and number[0] < 0x80:
        return number[0], at + 1
    if len(number) < 2 or number[1] >= 0x80:
        raise PagesError("its list of tables has a number of another length")
    return (number[0] & 0x7F) << 7 | number[1], at + 2
