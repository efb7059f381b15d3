"""Cross-dataset transfer and domain generalization: train on all classes of a source, test elsewhere.

The two differ only in their targets (section 4): other data sets with their own classes, or the source's
classes under a shift. They share the training.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from dear.errors import DataError
from dear.evaluation.protocols.base import Protocol
from dear.evaluation.schema import check_scores, part_of

if TYPE_CHECKING:
    from dear.data.dataset import Dataset
    from dear.evaluation.trial import Trial


@dataclass(frozen=True)
class Transfer(Protocol):
    """Train on a source, test on targets. Both the fused accuracy and that of the class feature alone
    ("decoupled") are recorded; the paper reports the latter for cross-dataset transfer and does not specify
    it for domain generalization.

    Attributes:
        source: Data set to train on.
    """

    shared_training: ClassVar[str | None] = "source"
    scored: ClassVar[tuple[str, ...]] = ("source",)

    source: str = "source"

    @property
    def fingerprint(self) -> str:
        """The source is already among the data sets of the key."""
        return self.name

    @property
    def trained_on(self) -> str | None:
        return self.source

    def run(self, trial: "Trial") -> dict[str, Any]:
        every = range(len(trial.source.classnames))
        trial.train(every)
        on_source = trial.test(trial.source, every)
        targets = {
            target.name: trial.test(target, range(len(target.classnames)), novel=True)
            for target in trial.targets
        }
        return {"source": on_source, "targets": targets}

    def check_data(self, trained_on: "Dataset", targets: Sequence["Dataset"]) -> None:
        if not targets:
            raise DataError(f"{self.name} needs at least one data set to test on besides {trained_on.name}.")
        if any(target.identity == trained_on.identity for target in targets):
            raise DataError(f"{trained_on.name} is both the source and a target: remove it from the targets.")

    def check_record(self, record: Mapping[str, Any]) -> None:
        super().check_record(record)
        for one in part_of(record, "targets"):
            check_scores(record, "targets", one["name"])


@dataclass(frozen=True)
class CrossDataset(Transfer):
    """Train on all classes of a source data set, test on other data sets.

    Attributes:
        source: Data set to train on.
    """

    name: ClassVar[str] = "cross-dataset"
    summary: ClassVar[str] = "Train on a source, test on other data sets."
    place: ClassVar[int] = 2


@dataclass(frozen=True)
class DomainGeneralization(Transfer):
    """Train on all classes of a source data set, test on variants of it under a shift.

    Attributes:
        source: Data set to train on.
    """

    name: ClassVar[str] = "domain-generalization"
    summary: ClassVar[str] = "Train on a source, test on shifted variants of it."
    place: ClassVar[int] = 3
    data: ClassVar[tuple[str, ...]] = (
        "source-resampled", "source-sketch", "source-rendition", "source-adversarial",
    )  # fmt: skip
