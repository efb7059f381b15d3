"""SQLite files whose b-trees have pages that are children of several parents: few bytes, endless entries."""

import sqlite3
import struct
from contextlib import closing
from pathlib import Path

CHILDREN, LEVELS = 300, 8
HEADER = 100
"""Bytes before the root of the schema's tree, on the first page."""


def share_pages(path: Path, tree: str) -> None:
    """Let the tree of a table or an index, or the schema ("sqlite_master"), have 300 ** 8 times its leaf."""
    with closing(sqlite3.connect(path)) as database:
        size = database.execute("PRAGMA page_size").fetchone()[0]
        roots = dict(database.execute("SELECT name, rootpage FROM sqlite_master")) | {"sqlite_master": 1}
    content = path.read_bytes()
    pages = [bytearray(content[at : at + size]) for at in range(0, len(content), size)]
    root, start = pages[roots[tree] - 1], HEADER if tree == "sqlite_master" else 0
    leaf, kind = _moved(root, start), 5 if root[start] == 13 else 2
    pages.append(leaf)
    if tree == "sqlite_master":  # below the shared pages only what may be listed again: an automatic index
        ((at, _),) = [cell for cell in _cells(leaf) if _is_automatic(leaf, *cell)]
        alone = bytearray(leaf)
        struct.pack_into(">H", alone, 3, 1)
        struct.pack_into(">H", alone, 8, at)
        pages.append(alone)
    below = len(pages)
    for _ in range(LEVELS):
        pages.append(_interior(kind, [below] * CHILDREN, bytes(size)))
        below = len(pages)
    first = len(pages) - LEVELS - 1 if tree == "sqlite_master" else below
    top = _interior(kind, [first, below, below], bytes(root[:start]) + bytes(size - start), start)
    pages[roots[tree] - 1] = top
    struct.pack_into(">I", pages[0], 28, len(pages))
    path.write_bytes(b"".join(pages))


def repeat_entry(path: Path, tree: str) -> None:
    """Let all entries of a tree of one page be its first one."""
    with closing(sqlite3.connect(path)) as database:
        size = database.execute("PRAGMA page_size").fetchone()[0]
        ((root,),) = database.execute("SELECT rootpage FROM sqlite_master WHERE name = ?", (tree,))
    pages = bytearray(path.read_bytes())
    leaf = pages[(root - 1) * size : root * size]
    cells = _cells(leaf)
    start = cells[0][0]
    struct.pack_into(f">{len(cells)}H", pages, (root - 1) * size + 8, *[start] * len(cells))
    path.write_bytes(pages)


def name_one_row(path: Path, tree: str, row: int) -> int:
    """Let all entries of an index, which are short, name one row: all rows have numbers of two bytes. Returns
    how many entries there are.
    """
    with closing(sqlite3.connect(path)) as database:
        size = database.execute("PRAGMA page_size").fetchone()[0]
        ((root,),) = database.execute("SELECT rootpage FROM sqlite_master WHERE name = ?", (tree,))
    content, numbers, renamed = bytearray(path.read_bytes()), [root], 0
    while numbers:
        start = (numbers.pop() - 1) * size
        page, inner = content[start : start + size], content[start] == 2
        if inner:
            numbers.append(struct.unpack_from(">I", page, 8)[0])
        for at in struct.unpack_from(f">{struct.unpack_from('>H', page, 3)[0]}H", page, 12 if inner else 8):
            if inner:
                numbers.append(struct.unpack_from(">I", page, at)[0])
            value = at + 4 * inner
            struct.pack_into(">H", content, start + value + 1 + page[value] - 2, row)  # its last two bytes
            renamed += 1
    path.write_bytes(content)
    return renamed


def _cells(leaf: bytearray) -> list[tuple[int, int]]:
    """Where the cells of a page begin and end."""
    count = struct.unpack_from(">H", leaf, 3)[0]
    starts = struct.unpack_from(f">{count}H", leaf, 8)
    return [(at, min([end for end in starts if end > at], default=len(leaf))) for at in starts]


def _is_automatic(leaf: bytearray, at: int, end: int) -> bool:
    return b"sqlite_autoindex_files_1" in leaf[at:end]


def _moved(root: bytearray, start: int) -> bytearray:
    """A page whose tree begins at its start."""
    count, content = struct.unpack_from(">HH", root, start + 3)
    page = bytearray(len(root))
    page[: 8 + 2 * count] = root[start : start + 8 + 2 * count]
    page[content:] = root[content:]
    return page


def _interior(kind: int, children: list[int], base: bytes, start: int = 0) -> bytearray:
    """A page of a table (5) or an index (2) with these children; the key of each cell is small."""
    page, key, end = bytearray(base), b"\x02" if kind == 5 else b"\x03\x03\x08\x09", len(base)
    starts = []
    for child in children[:-1]:
        cell = struct.pack(">I", child) + key
        end -= len(cell)
        page[end : end + len(cell)] = cell
        starts.append(end)
    struct.pack_into(">BHHHBI", page, start, kind, 0, len(starts), end, 0, children[-1])
    struct.pack_into(f">{len(starts)}H", page, start + 12, *starts)
    return page
