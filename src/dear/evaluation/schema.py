"""The schema version and structure of run records (docs/reproduce.md). Light to import because the
report uses it too.
"""

from dataclasses import dataclass
from typing import Annotated, Any, NotRequired, TypedDict

from dear.errors import DataError, without_surrogates
from dear.reading.typed import Count, Number, Range, Share

SCHEMA = 2
"""The number of the structure of records; no other is read."""

MOST_IMAGES = 10**12
"""Of a class or a confusion: the sums of many records stay within 64 bits."""
ImageCount = Annotated[int, Range(0, MOST_IMAGES)]


class DatasetSummary(TypedDict):
    """A data set, as a record names it."""

    name: str
    title: NotRequired[str]
    classes: NotRequired[list[str]]


class Weights(TypedDict):
    """Identity of the backbone."""

    sha256: str


@dataclass(frozen=True)
class Mistake:
    """A misclassified image.

    Attributes:
        index: Its number among the test images of its data set.
        label, prediction: Its class and the predicted one, numbers in the list of classes.
        confidence: Probability of the prediction.
        probability: That of the image's own class.
        file: The image file, if it has one, within the folder of its data set.
        sha256: 16 hexadecimal digits of the hash of its content, in records of runs.
    """

    index: Count
    label: Count
    prediction: Count
    confidence: Share
    probability: Share
    file: str | None = None
    sha256: str | None = None

    @property
    def title(self) -> str:
        """The file, or the number of the image counted from 1."""
        return without_surrogates(self.file or f"image {self.index + 1}")


class MistakesEntry(TypedDict):
    """The mistakes in a part of the results; counts by class, in the order of ``classes``."""

    part: list[str | int]
    classes: list[str]
    images: list[ImageCount]
    correct: list[ImageCount]
    predicted: list[ImageCount]
    confusions: list[tuple[Count, Count, Annotated[int, Range(1, MOST_IMAGES)]]]
    left_out: ImageCount
    identity: NotRequired[str]
    folder: NotRequired[str]
    examples: list[Mistake]


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
    mistakes: NotRequired[list[MistakesEntry]]
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
