"""Cross-dataset transfer and domain generalization: train on all classes of a source, test elsewhere.

The two differ here only in their targets: other data sets with their own classes, or the source's classes
under a shift. They share the training and, as we read it [ours], the inference, of which section 4.1 speaks
for the first alone.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

from dear.data.sources.benchmarks import named_benchmark
from dear.data.sources.folder import domains_of, subfolders
from dear.errors import DataError
from dear.evaluation.protocols.base import Protocol, TrialLike
from dear.methods.declaration import Novelty
from dear.reading.files import expanded
from dear.world.names import task_names

if TYPE_CHECKING:
    from dear.data.dataset import Dataset


@dataclass(frozen=True)
class Transfer(Protocol):
    """Train on a source, test on targets. A method says by which features its authors score the targets
    (``decoupled_on``); the accuracies by all features and by the class feature alone are recorded too.

    Attributes:
        source: Data set to train on. The default is a data set of the Attribute World.
    """

    novelty: ClassVar[Novelty | None] = "data"
    shared_training: ClassVar[str] = "source"
    scored: ClassVar[tuple[str, ...]] = ("source",)

    source: str = "source"

    @property
    def fingerprint(self) -> str:
        """The source is already among the data sets of the key."""
        return self.name

    @property
    def trained_on(self) -> str | None:
        return self.source

    def test(self, trial: TrialLike) -> dict[str, Any]:
        on_source = trial.test(trial.source, range(len(trial.source.classnames)), part="source")
        targets = dict[str, Any]()
        for target in trial.targets:
            classes, part = range(len(target.classnames)), f"targets/{target.name}"
            targets[target.name] = trial.test(target, classes, part=part, trained=False).scores
        return {"source": on_source.scores, "targets": targets}

    def check_data(self, trained_on: "Dataset", targets: Sequence["Dataset"]) -> None:
        super().check_data(trained_on, targets)
        if not targets:
            raise DataError(f"{self.name} needs at least one data set to test on besides {trained_on.name}.")
        if any(target.identity == trained_on.identity for target in targets):
            raise DataError(f"{trained_on.name} is both the source and a target: remove it from the targets.")


@dataclass(frozen=True)
class CrossDataset(Transfer):
    """Train on all classes of a source data set, test on other data sets.

    Attributes:
        source: Data set to train on. The default is a data set of the Attribute World.
    """

    name: ClassVar[str] = "cross-dataset"
    summary: ClassVar[str] = "Train on a source, test on other data sets."


@dataclass(frozen=True)
class DomainGeneralization(Transfer):
    """Train on all classes of a source data set, test on variants of it under a shift.

    With a folder of domains as the only data set, the source is one of its folders and the others are tested
    on, with all their images: `--data FOLDER --source photo`.

    Attributes:
        source: Data set to train on; in a folder of domains, a domain. The default is of the Attribute World.
    """

    name: ClassVar[str] = "domain-generalization"
    summary: ClassVar[str] = "Train on a source, test on shifted variants of it."
    data: ClassVar[tuple[str, ...]] = (
        "source-resampled", "source-sketch", "source-rendition", "source-adversarial",
    )  # fmt: skip

    def arrange(self, data: Sequence[str]) -> tuple[Self, tuple[str, ...]]:
        """A folder of domains stands for them: one is the source, all others are targets. Raises DataError if
        the source is not one of them.
        """
        if len(data) != 1 or not data[0] or data[0] in task_names() or named_benchmark(data[0]):
            return self, tuple(data)
        folder = expanded(data[0])
        if not folder.is_dir():
            return self, tuple(data)
        name = self.source
        if expanded(name).resolve().parent == folder.resolve():  # given as a path
            name = Path(name).name
        among = "/" not in name and (folder / name).is_dir()
        domains = tuple(subfolders(folder)) if among else domains_of(folder)
        if among:
            others = tuple(os.path.join(data[0], domain) for domain in domains if domain != name)
            return replace(self, source=os.path.join(data[0], name)), others
        if domains and self.source == type(self).source:
            raise DataError(
                f"{data[0]} holds the domains {', '.join(domains)}: name the one to train on, for example "
                f"--source {domains[0]}."
            )
        return self, tuple(os.path.join(data[0], domain) for domain in domains) or tuple(data)
