"""The schema version and structure of run records (docs/reproduce.md). Light to import because the
report uses it too.
"""

from typing import Any, NotRequired, TypedDict

from dear.errors import DataError
from dear.reading.typed import Number

SCHEMA = 2
"""The number of the structure of records; no other is read."""


class DatasetSummary(TypedDict):
    """A data set, as a record names it."""

    name: str
    title: NotRequired[str]
    classes: NotRequired[list[str]]


class Weights(TypedDict):
    """Identity of the backbone."""

    sha256: str


class Record(TypedDict):
    """A run record (docs/reproduce.md says what each field holds). The results depend on the protocol."""

    schema: int
    protocol: str
    key: NotRequired[str]
    method: str
    variant: NotRequired[str | None]
    settings: NotRequired[dict[str, Any]]
    set_by_user: NotRequired[dict[str, list[str]]]
    published: NotRequired[list[str]]
    tuned_on_targets: NotRequired[dict[str, Any]]
    dataset: DatasetSummary
    targets: NotRequired[list[DatasetSummary]]
    weights: Weights
    transductive: NotRequired[bool]
    teacher: NotRequired[dict[str, Any] | None]
    roles: NotRequired[dict[str, Any] | None]
    seed: int
    shots: NotRequired[int]
    train: NotRequired[dict[str, Any]]
    selection: NotRequired[dict[str, Any]]
    results: dict[str, Any]
    fusion_weights: NotRequired[dict[str, Number] | None]
    trainable_parameters: NotRequired[int]
    seconds: NotRequired[dict[str, Number]]
    peak_memory: NotRequired[dict[str, Number | None]]
    environment: NotRequired[dict[str, str | int]]


def part_of(record: Any, *path: str | int) -> Any:
    """The value in a record at a path of keys and indices. Raises DataError naming the first missing key."""
    value = record
    for depth, key in enumerate(path, start=1):
        try:
            value = value[key]
        except (KeyError, IndexError, TypeError):
            raise DataError(f"the run record lacks {'.'.join(map(str, path[:depth]))!r}") from None
    return value


def harmonic_mean(base: float, novel: float) -> float:
    """2 b n / (b + n), in the unit of the two; 0 if either is 0. Source: the paper, base-to-novel."""
    return 2 * base * novel / (base + novel) if base and novel else 0.0
