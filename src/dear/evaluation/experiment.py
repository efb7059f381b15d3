"""An experiment: a protocol over data sets, plans, shots and seeds, and the runs it is made of. Light to
import, so that commands and recipes can be checked without loading torch.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dear.data.seeds import checked_seed
from dear.data.settings import DataSettings
from dear.errors import DataError, SettingsError
from dear.evaluation.plan import Plan, Protocol, Select
from dear.evaluation.resolve import Training, training_of
from dear.training.settings import TrainOptions

"""What torch takes."""


@dataclass(frozen=True)
class Run:
    """One run: what is trained on, with what, and for the transfer protocols where it is tested."""

    protocol: Protocol
    dataset: str
    plan: Plan
    seed: int
    shots: int
    targets: tuple[str, ...] = ()


@dataclass(frozen=True)
class Model:
    """A backbone by name.

    Attributes:
        roles: A role table's file; the package's own for these weights if None.
    """

    name: str = "tiny"
    pretrained: str | None = None
    roles: Path | None = None


@dataclass(frozen=True)
class Experiment:
    """A protocol over data sets, plans, shots and seeds.

    Attributes:
        out: Folder of the records.
        data: Data sets: of training and test, or for the transfer protocols of the test.
        source: The data set that the transfer protocols train on.
        dataset: How the data sets are read.
        train: Settings of training: whole ones, or what is set over those that a method is published with.
        start_over: Whether runs with a damaged checkpoint set it aside and start over; else it is an error.
        about: What a recipe tells of itself: the table or figure, source, hardware, time.
    """

    protocol: Protocol
    out: Path
    data: tuple[str, ...]
    plans: tuple[Plan, ...]
    source: str | None = None
    seeds: tuple[int, ...] = (1,)
    shots: tuple[int, ...] = (16,)
    model: Model = field(default_factory=Model)
    train: Training = field(default_factory=TrainOptions)
    select: Select = "last"
    dataset: DataSettings = field(default_factory=DataSettings)
    about: Mapping[str, Any] = field(default_factory=dict)
    start_over: bool = False

    def __post_init__(self) -> None:
        for what, values in {"data set": self.data, "method": self.plans, "seed": self.seeds}.items():
            if not values:
                raise DataError(f"there is no {what} to run {self.protocol} with.")
        if "" in (*self.data, self.source):
            raise DataError("a data set's name is empty: give a name or a path.")
        if not self.shots or min(self.shots) < 1:
            raise SettingsError(f"shots are {[*self.shots]}: each must be at least 1.")
        if (self.source is None) == self.transfer:
            raise SettingsError(f"{self.protocol} {'needs a' if self.transfer else 'has no'} source.")
        if self.source in self.data:
            raise DataError(f"{self.source} is the source and a target too: leave it out of the targets.")
        for seed in self.seeds:
            checked_seed(seed)
        for plan in self.plans:
            training_of(plan, self.train)

    @property
    def transfer(self) -> bool:
        return self.protocol in ("cross-dataset", "domain-generalization")

    def runs(self) -> list[Run]:
        """All runs: data set by data set, so that what they share is computed once. In few-shot, a
        method that does not train is the run with 0 shots.
        """
        trained: list[tuple[str, tuple[str, ...]]] = [(name, ()) for name in self.data]
        if self.source is not None:
            trained = [(self.source, self.data)]
        runs = [
            Run(self.protocol, name, plan, seed, self._shots(plan, shots), targets)
            for name, targets in trained
            for seed in self.seeds
            for shots in self.shots
            for plan in self.plans
        ]
        return list(dict.fromkeys(runs))

    def _shots(self, plan: Plan, shots: int) -> int:
        return 0 if self.protocol == "few-shot" and not plan.trains else shots
