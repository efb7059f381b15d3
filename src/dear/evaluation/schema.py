"""The schema version and structure of run records (docs/reproduce.md). Light to import because the
report uses it too.
"""

from collections.abc import Mapping
from typing import Any, NotRequired, TypedDict

from dear.errors import DataError
from dear.reading.typed import Count, Number, Share, typed

SCHEMA = 2
"""The number of the structure of records; no other is read."""


class DatasetSummary(TypedDict):
    """A data set, as a record names it."""

    name: str
    title: NotRequired[str]
    identity: NotRequired[str]
    classes: NotRequired[list[str]]
    left_out: NotRequired[Count]


class Weights(TypedDict):
    """Identity of the backbone."""

    sha256: str
    model: NotRequired[str]
    pretrained: NotRequired[str]


class Roles(TypedDict):
    """The source of a run's roles; the table is as written by `dear.roles.table`."""

    source: str
    table: NotRequired[dict[str, Any]]


class Train(TypedDict):
    """What was logged of each epoch."""

    epochs: NotRequired[list[dict[str, Number]]]


class Teacher(TypedDict):
    """The teacher that a method learned from, and how it was trained."""

    method: str
    settings: NotRequired[dict[str, Any]]
    weights: Weights
    train: NotRequired[Train]


class Selection(TypedDict):
    """How the tested epoch was selected."""

    rule: NotRequired[str]
    epoch: NotRequired[int | None]


class Seconds(TypedDict, total=False):
    """Wall clock."""

    train: Number
    test: Number


class Memory(TypedDict, total=False):
    """Peak memory, in MiB."""

    resident: Number | None
    gpu: Number | None


class Settings(TypedDict, total=False):
    """The settings of the method and of its training, among others."""

    method: dict[str, Any]
    train: dict[str, Any]


class SetByUser(TypedDict):
    """The names of the settings that the user set; the others are as published for the run."""

    method: list[str]
    train: list[str]


class Record(TypedDict):
    """A run record. The contents of the results depend on the protocol."""

    schema: int
    protocol: str
    key: NotRequired[str]
    method: str
    variant: NotRequired[str | None]
    settings: NotRequired[Settings]
    set_by_user: NotRequired[SetByUser]
    published: NotRequired[list[str]]
    tuned_on_targets: NotRequired[dict[str, dict[str, Any]]]
    dataset: DatasetSummary
    targets: NotRequired[list[DatasetSummary]]
    weights: Weights
    transductive: NotRequired[bool]
    teacher: NotRequired[Teacher | None]
    roles: NotRequired[Roles | None]
    seed: Count
    shots: NotRequired[Count]
    train: NotRequired[Train]
    selection: NotRequired[Selection]
    results: dict[str, Any]
    fusion_weights: NotRequired[dict[str, Number] | None]
    trainable_parameters: NotRequired[Count]
    seconds: NotRequired[Seconds]
    peak_memory: NotRequired[Memory]
    environment: NotRequired[dict[str, str | int]]


class Scores(TypedDict):
    """Accuracies in a part of the results, fractions."""

    accuracy: Share
    decoupled: NotRequired[Share | None]
    per_class: NotRequired[dict[str, Share] | None]


def part_of(record: Any, *path: str | int) -> Any:
    """The value in a record at a path of keys and indices. Raises DataError naming the first missing key."""
    for depth, key in enumerate(path, start=1):
        # Not below 0: a value would have as many paths as there are ways to count its lists.
        is_index = isinstance(record, list) and isinstance(key, int) and 0 <= key < len(record)
        if not is_index and not (isinstance(record, Mapping) and key in record):
            raise DataError(f"the run record lacks {'.'.join(map(str, path[:depth]))!r}")
        record = record[key]
    return record


def check_scores(record: Any, *path: str | int) -> None:
    """Raise DataError if there are no accuracies at a path of the results."""
    where = ".".join(map(str, ("results", *path)))
    typed(part_of(record, "results", *path), Scores, "", where)


def harmonic_mean(base: float, novel: float) -> float:
    """2 b n / (b + n), in the unit of the two; 0 if either is 0. Source: the paper, base-to-novel."""
    return 2 * base * novel / (base + novel) if base and novel else 0.0
