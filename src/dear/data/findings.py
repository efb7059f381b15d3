"""Results of the data set commands. Cheap to import: commands can show them without loading torch."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Check:
    """The result of checking a data set; counts are of images.

    Attributes:
        keys: the folders or labels of the classes, in the order of their names.
        published: counts of the published split, for benchmarks.
        per_class: the smallest and largest number of images per class in each split.
        missing: files that are listed but do not exist.
        broken: files that cannot be read, with the reason; includes missing ones. None if not checked.
        faults: errors in the lists themselves, one line each; the other fields leave out faulty entries.
        other_names: class names that differ from the published ones, one line each.
        standard: whether the split is the one used for published results, judged by its source, counts and
            class names; None for data that is not a benchmark.
        duplicates: groups of files with the same content; None if not looked for.
        warnings: what the data can be used with but should be looked at, one line each: a single class,
            uneven classes, repeated images.
        ok: no faults, no missing or broken files, no warnings.
    """

    name: str
    folder: str
    split: str
    standard: bool | None
    classes: int
    classnames: list[str]
    keys: list[str]
    counts: dict[str, int]
    published: dict[str, int] | None
    per_class: dict[str, tuple[int, int]]
    missing: list[str]
    broken: dict[str, str] | None
    other_names: list[str]
    templates: list[str]
    notes: list[str]
    faults: list[str]
    duplicates: list[list[str]] | None
    warnings: list[str]
    ok: bool

    @property
    def partly(self) -> bool:
        """Whether the exit code reports a partial result: warnings alone do not."""
        return bool(self.faults or self.missing or self.broken)


@dataclass(frozen=True)
class Fetched:
    """The files that were downloaded, and what remains to be done by hand.

    Attributes:
        fetched: new files and folders in the folder.
        by_hand: what torchvision does not download, one line each.
        why: why nothing was downloaded, or None.
    """

    name: str
    folder: str
    fetched: list[str]
    by_hand: list[str]
    why: str | None
