"""The protocol interface. This module and every protocol's file are light to import: commands, recipes and
the report query them without torch, which only `test` needs.
"""

import json
import typing
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

from dear.errors import DataError, SettingsError
from dear.methods.declaration import Declaration, Novelty
from dear.methods.registry import METHODS, USUAL

if TYPE_CHECKING:
    from dear.data.dataset import Dataset
    from dear.evaluation.joint import Tested
    from dear.methods.base import Method


class TrialLike(typing.Protocol):
    """What a protocol asks of the trained method that it tests, which `dear.evaluation.trial.Trial` does.

    Attributes:
        source: The data set that is trained on.
        targets: The other data sets that are tested on.
    """

    method: "Method"

    @property
    def source(self) -> "Dataset": ...

    @property
    def targets(self) -> "tuple[Dataset, ...]": ...

    def test(
        self,
        dataset: "Dataset",
        classes: Sequence[int],
        *,
        part: str,
        trained: bool = True,
        keep_features: bool = False,
    ) -> "Tested":
        """Test on the images of some classes, among these classes."""

    def test_jointly(self, *parts: "Tested") -> list[dict[str, Any]]:
        """The scores on the images of each part among the classes of all parts."""


@dataclass(frozen=True)
class Protocol(ABC):
    """How methods are trained and tested. The fields of a protocol are its options: of its command, and keys
    of its recipes.

    Attributes:
        name: Its name in commands, recipes and records.
        summary: Its line in the list of commands.
        trains_as: Other commands that train with the settings published for this protocol.
        data: The data sets that it runs on if none is named.
        shots: The numbers of training images per class that it runs with by default.
        several_shots: True if it accepts several shot counts.
        novelty: What it tests a method on that it was not trained on, if anything: methods say how they are
            scored there (`decoupled_on`).
        needs_open_vocabulary: True if a method must be able to score classes that it was not trained on.
        unlabeled: True if a method may train on the training images of all classes without their labels.
        shared_training: A name for its training, shared with the protocols that train in the same way.
        scored: The parts of its results that have an accuracy.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    trains_as: ClassVar[tuple[str, ...]] = ()
    data: ClassVar[tuple[str, ...]] = ("world",)
    shots: ClassVar[tuple[int, ...]] = (16,)
    several_shots: ClassVar[bool] = False
    novelty: ClassVar[Novelty | None] = None
    needs_open_vocabulary: ClassVar[bool] = True
    unlabeled: ClassVar[bool] = False
    shared_training: ClassVar[str] = ""
    scored: ClassVar[tuple[str, ...]] = ()

    @abstractmethod
    def test(self, trial: TrialLike) -> dict[str, Any]:
        """Test a method that was trained on `training_classes`; returns the results for its record. Nothing
        is selected on test data.
        """

    @property
    def fingerprint(self) -> str:
        """What the protocol contributes to the key of a run: its name, and its options if it has any."""
        options = asdict(self)
        return f"{self.name} {json.dumps(options, sort_keys=True)}" if options else self.name

    @property
    def trained_on(self) -> str | None:
        """The single data set that is trained on, to test on all others; None to train on each."""
        return None

    def arrange(self, data: Sequence[str]) -> tuple[Self, tuple[str, ...]]:
        """The protocol and the data sets that it runs on, given what the user named. Raises DataError."""
        return self, tuple(data)

    def training_classes(self, classes: int) -> Sequence[int]:
        """The classes that are trained on, given the data set's number of classes."""
        return range(classes)

    def shots_of(self, method: Declaration, shots: int) -> int:
        """The shots that a method runs with when ``shots`` are requested."""
        del method
        return shots

    def check_method(self, method: Declaration) -> None:
        """Raise SettingsError for a method that the protocol cannot run."""
        if method.unlabeled and not self.unlabeled:
            raise SettingsError(
                f"{method.name} trains on unlabeled images of all classes that it is tested on, which "
                f"{self.name} does not give it: run it with base-to-novel or few-shot."
            )
        if self.needs_open_vocabulary and not method.open_vocabulary:
            raise SettingsError(
                f"{method.name} is bound to its training classes and cannot score classes that it was not "
                f"trained on, which {self.name} tests: run it with few-shot."
            )

    def methods(self) -> list[str]:
        """The methods that it can run: what "all" stands for."""
        suitable = []
        for name, method in METHODS.items():
            with suppress(SettingsError):
                self.check_method(method)
                suitable.append(name)
        return suitable

    def usual(self) -> list[str]:
        """The methods that it runs if none is named."""
        suitable = self.methods()
        return [name for name in USUAL if name in suitable]

    def check_data(self, trained_on: "Dataset", targets: Sequence["Dataset"]) -> None:
        """Raise DataError for data sets that the protocol cannot run on."""
        if untested := [dataset.name for dataset in (trained_on, *targets) if not len(dataset.test)]:
            raise DataError(f"{untested[0]} has no test images, which {self.name} needs.")

    def check_shots(self, shots: Sequence[int]) -> None:
        """Raise SettingsError for numbers of shots that do not fit its table."""
        if not shots:
            raise SettingsError("there are no shots: give at least one number.")
        if len(shots) > 1 and not self.several_shots:
            raise SettingsError(f"shots are {[*shots]}: {self.name} takes a single number of shots.")
