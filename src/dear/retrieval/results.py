"""Results of building and searching an index. Light to import: commands name them without loading torch."""

from dataclasses import dataclass, field
from pathlib import Path


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
    """A neighbor: its path in the folder, and its score, the weighted mean of the cosines by feature.

    ``copies`` are other files with the same bytes, of many the first ones; ``more_copies`` counts the rest.
    """

    path: str
    score: float
    by: dict[str, float]
    copies: tuple[str, ...] = ()
    more_copies: int = 0
    sha256: str = ""
