"""Paths in tables that were written on another system than the one that reads them."""

import unicodedata
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import product
from pathlib import Path

from dear.reading.files import file_size

SAMPLE = 100  # paths that are looked for

Rewrite = Callable[[str], str]


def rewriting(folder: Path, paths: Sequence[str]) -> Rewrite | None:
    """How to write paths relative to ``folder`` so that most of their files are there; None for as they are.

    Windows separates folders by backslashes, macOS may store accents apart from their letters, and cells may
    have spaces around their text. A sample decides for all paths.
    """
    odd = [path for path in paths if not path.isascii() or "\\" in path or path != path.strip()]
    sample = odd[:: -(-len(odd) // SAMPLE) or 1]

    def present(rewrite: Rewrite) -> int:
        return sum(file_size(folder / rewrite(path)) is not None for path in sample)

    as_it_is, *others = _rewritings()
    if present(as_it_is) == len(sample):
        return None
    best = max((as_it_is, *others), key=present)  # the first of equals
    return None if best is as_it_is else best


def _rewritings() -> Iterator[Rewrite]:
    """The identity, then each combination of what may be changed."""
    strips: tuple[Rewrite, ...] = (_same, str.strip)
    slashes: tuple[Rewrite, ...] = (_same, _with_slashes)
    accents: tuple[Rewrite, ...] = (_same, _composed, _decomposed)
    for changes in product(strips, slashes, accents):
        yield partial(_changed, changes)


def _changed(changes: Sequence[Rewrite], path: str) -> str:
    for change in changes:
        path = change(path)
    return path


def _same(path: str) -> str:
    return path


def _with_slashes(path: str) -> str:
    return path.replace("\\", "/")


def _composed(path: str) -> str:
    return unicodedata.normalize("NFC", path)


def _decomposed(path: str) -> str:
    return unicodedata.normalize("NFD", path)
