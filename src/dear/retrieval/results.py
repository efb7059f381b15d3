"""Results of building and querying an index. Light to import: commands name them without loading torch."""

import errno
from dataclasses import dataclass, field
from pathlib import Path

from dear.errors import DataError

COPIES = 1000
"""Files that a hit names beside its first: an index may have any number of one content, with long names."""


@dataclass(frozen=True)
class Built:
    """The outcome of a build.

    Attributes:
        added, changed, removed, unchanged: Numbers of files.
        encoded: How many of them went through the model; copies of known contents do not.
        files: Number of searchable files.
        rows: Number of rows of vectors, including those of removed files.
        broken: Unreadable files, and why.
        left_out: Attributes that own no head: they cannot be searched by.
    """

    index: Path
    features: tuple[str, ...]
    added: int
    changed: int
    removed: int
    unchanged: int
    encoded: int
    files: int
    rows: int
    broken: dict[str, str] = field(default_factory=dict)
    left_out: tuple[str, ...] = ()

    @property
    def partly(self) -> bool:
        """True if part of the work could not be done, which the exit code reports."""
        return bool(self.broken)


@dataclass(frozen=True)
class Hit:
    """A neighbour.

    Attributes:
        path: Relative to the index's folder.
        score: The weighted mean of ``by``; in [-1, 1].
        by: The cosine for each requested feature.
        copies: Other files with the same bytes, of many the first that were indexed: 1,000 by default.
        more_copies: How many others there are.
        sha256: Of these bytes.
    """

    path: str
    score: float
    by: dict[str, float]
    copies: tuple[str, ...] = ()
    more_copies: int = 0
    sha256: str = ""


def opens_no_more(error: BaseException | None) -> bool:
    """Whether the system opens no more files, which SQLite calls "unable to open"."""
    return getattr(error, "errno", None) in (errno.EMFILE, errno.ENFILE) or "unable to open" in str(error)


def unopened(index: Path, error: Exception) -> DataError:
    """The error for a catalogue that cannot be opened or read."""
    if opens_no_more(error):
        return DataError(
            f"cannot open the index {index}: {error}. Raise the number of open files with `ulimit -n` if it "
            "has many shards, or check the permissions of its files."
        )
    if isinstance(error, FileNotFoundError):  # it was there before
        return DataError(f"the index {index} is no longer there: build it again, if nobody replaces it now.")
    if "locked" in str(error):
        return DataError(f"the index {index} is being written: try again soon.")
    return damaged(index, error)


def damaged(index: Path, why: object) -> DataError:
    """The error for an index that a build cannot repair: vectors or the catalogue are lost."""
    return DataError(
        f"the index {index} is damaged ({why}): remove it and run `dear index build` again, or build it "
        "elsewhere."
    )
