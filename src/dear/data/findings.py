"""What commands on data sets find. Light to import, so that commands can show it without loading torch."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Check:
    """The findings; units: images.

    Attributes:
        counts: images of each split.
        published: those of the published split, for benchmarks.
        per_class: the fewest and the most images of a class in each split.
        missing: files that are listed and not there.
        broken: files that cannot be read and why; missing ones too. None if they were not looked at.
        faults: what is wrong with the lists themselves, one line each; what is wrong is left out of the rest.
        other_names: class names that differ from the published ones, one line each.
        standard: whether the split is the one that published results use, as far as its source, its counts
            and its class names tell; None for data that is not published.
        ok: nothing wrong, missing or broken.
    """

    name: str
    folder: str
    split: str
    standard: bool | None
    classes: int
    classnames: list[str]
    counts: dict[str, int]
    published: dict[str, int] | None
    per_class: dict[str, tuple[int, int]]
    missing: list[str]
    broken: dict[str, str] | None
    other_names: list[str]
    templates: list[str]
    notes: list[str]
    faults: list[str]
    ok: bool

    @property
    def partly(self) -> bool:
        """What the exit code tells."""
        return not self.ok


@dataclass(frozen=True)
class Fetched:
    """What was fetched, and what is left to do by hand.

    Attributes:
        fetched: files and folders that are new in the folder.
        by_hand: what torchvision does not fetch, one line each.
        why: why nothing was fetched, or None.
    """

    name: str
    folder: str
    fetched: list[str]
    by_hand: list[str]
    why: str | None
