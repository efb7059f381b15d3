"""An experiment: a protocol over data sets, plans, shots and seeds, and the runs it consists of. Light to
import, so that commands and recipes can be checked without loading torch.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dear.backbone.choice import BackboneName, Precision, backbone_or_default
from dear.data.seeds import checked_seed
from dear.data.settings import DataSettings
from dear.errors import DataError
from dear.evaluation.plan import Plan, Select
from dear.evaluation.protocols.base import Protocol
from dear.evaluation.resolve import Training, settle
from dear.training.settings import TrainOptions, TrainSettings


@dataclass(frozen=True)
class Run:
    """One run: what is trained, on which data set, and which other data sets it is tested on."""

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
        name: None for a real CLIP, or for the tiny one if all data sets are of the Attribute World.
        roles: File of a role table; the packaged one for these weights if None.
    """

    name: str | None = None
    pretrained: str | None = None
    roles: Path | None = None


@dataclass(frozen=True)
class Experiment:
    """A protocol over data sets, plans, shots and seeds.

    Attributes:
        out: Folder of the records.
        data: Data sets: for training and test, or for test alone where the protocol trains on one.
        dataset: How the data sets are read.
        train: Training settings: complete ones, or overrides of those that each method is published with.
        start_over: Whether runs set a damaged checkpoint aside and start over; otherwise it is an error.
        about: A recipe's description of itself: the table or figure, source, hardware, time.
    """

    protocol: Protocol
    out: Path
    data: tuple[str, ...]
    plans: tuple[Plan, ...]
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
                raise DataError(f"there is no {what} to run {self.protocol.name} with.")
        source = self.protocol.trained_on
        if "" in (*self.data, source):
            raise DataError("a data set's name is empty: give a name or a path.")
        if source in self.data:
            raise DataError(f"{source} is both the source and a target: remove it from the targets.")
        self.protocol.check_shots(self.shots)
        for seed in self.seeds:
            checked_seed(seed)
        for plan in self.plans:
            self.protocol.check_plan(plan)
            self._training(plan)

    def _training(self, plan: Plan) -> list[TrainSettings]:
        """The distinct training settings of a plan's runs. Raises SettingsError."""
        trained_on = self.protocol.trained_on
        found = [
            settle(self.protocol, plan, name, shots, self.train)[1]
            for name in (self.data if trained_on is None else [trained_on])
            for shots in self.shots
        ]
        return list(dict.fromkeys(found))

    @property
    def world(self) -> bool:
        """Whether all data sets are tasks of the Attribute World."""
        from dear.data.loading import of_world

        return of_world((*self.data, *filter(None, [self.protocol.trained_on])))

    @property
    def backbone(self) -> BackboneName:
        """The backbone: the named one, or the usual one for the data sets."""
        return backbone_or_default(self.model.name, self.model.pretrained, world=self.world)

    @property
    def precisions(self) -> list[Precision]:
        """The precisions of all runs."""
        return [one.precision for plan in self.plans for one in self._training(plan)]

    def runs(self) -> list[Run]:
        """All runs, grouped by data set so that what they share is computed once."""
        trained: list[tuple[str, tuple[str, ...]]] = [(name, ()) for name in self.data]
        if (source := self.protocol.trained_on) is not None:
            trained = [(source, self.data)]
        runs = [
            Run(self.protocol, name, plan, seed, self.protocol.shots_of(plan, shots), targets)
            for name, targets in trained
            for seed in self.seeds
            for shots in self.shots
            for plan in self.plans
        ]
        return list(dict.fromkeys(runs))
