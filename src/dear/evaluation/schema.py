"""The version and the shape of run records (docs/reference/records.md). Light to import: the report uses it
too.
"""

from typing import Any, NotRequired, TypedDict

from dear.reading.typed import Count, Share

SCHEMA = 2


class DataTold(TypedDict):
    """What a record says of a data set."""

    name: str
    title: NotRequired[str]
    identity: NotRequired[str]
    classes: NotRequired[list[str]]


class Weights(TypedDict):
    """Of the backbone."""

    sha256: str
    model: NotRequired[str]
    pretrained: NotRequired[str]


class Roles(TypedDict):
    """Where a run's roles come from; the table as `dear.roles.table` writes it."""

    source: str
    table: NotRequired[dict[str, Any]]


class Train(TypedDict):
    """What was logged of each epoch."""

    epochs: NotRequired[list[dict[str, float]]]


class Selection(TypedDict):
    """How the tested epoch was chosen."""

    rule: NotRequired[str]
    epoch: NotRequired[int | None]


class Seconds(TypedDict, total=False):
    """Wall clock."""

    train: float
    test: float


class Memory(TypedDict, total=False):
    """Peak, in MiB."""

    resident: float | None
    gpu: float | None


class Record(TypedDict):
    """A run record. What results hold depends on the protocol."""

    schema: int
    protocol: str
    key: NotRequired[str]
    method: str
    variant: NotRequired[str | None]
    settings: NotRequired[dict[str, Any]]
    dataset: DataTold
    targets: NotRequired[list[DataTold]]
    weights: Weights
    roles: NotRequired[Roles | None]
    seed: Count
    shots: NotRequired[Count]
    train: NotRequired[Train]
    selection: NotRequired[Selection]
    results: dict[str, Any]
    fusion_weights: NotRequired[dict[str, float] | None]
    trainable_parameters: NotRequired[Count]
    seconds: NotRequired[Seconds]
    peak_memory: NotRequired[Memory]
    environment: NotRequired[dict[str, str | int]]


class Scores(TypedDict):
    """Accuracies on a part of the results, fractions."""

    accuracy: Share
    decoupled: NotRequired[Share | None]


class Neighbour(TypedDict):
    """An image, PNG in base64, and what is known of it."""

    image: str
    factors: NotRequired[dict[str, str | int]]


class Query(Neighbour):
    """A query with its neighbours by feature."""

    title: NotRequired[str]
    neighbours: dict[str, list[Neighbour]]


class Retrieval(TypedDict):
    """Results of the protocol retrieval; precision by feature and factor."""

    queries: NotRequired[list[Query]]
    precision: NotRequired[dict[str, dict[str, Share]]]
