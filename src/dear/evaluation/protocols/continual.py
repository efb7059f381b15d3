"""Continual (class-incremental) learning: classes arrive in groups, a few images of each; a method continues
training on the newest group alone and is tested among all classes seen so far.

Source of the setting and of the average over the groups: iCaRL (CVPR 2017), section 4; no images of earlier
groups are kept.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Any, ClassVar

from dear.errors import DataError, SettingsError
from dear.evaluation.protocols.base import Protocol
from dear.evaluation.schema import check_scores, part_of

if TYPE_CHECKING:
    from dear.evaluation.trial import Trial


@dataclass(frozen=True)
class Continual(Protocol):
    """Train on groups of classes one after the other; test on all classes seen after each.

    Attributes:
        groups: Number of groups in which the classes arrive, in label order; the first ones are larger by one
            if the classes do not divide evenly.
    """

    name: ClassVar[str] = "continual"
    summary: ClassVar[str] = "Train on groups of classes in turn, test on all seen."
    place: ClassVar[int] = 5

    groups: int = 4

    def __post_init__(self) -> None:
        if self.groups < 2:
            raise SettingsError(f"groups is {self.groups}: it must be at least 2.")

    @property
    def test_passes(self) -> float:
        return (self.groups + 1) / 2

    def stages(self, classes: int) -> Sequence[Sequence[int]]:
        if classes < self.groups:
            raise DataError(f"{self.groups} groups need at least as many classes, but there are {classes}.")
        size, larger = divmod(classes, self.groups)
        ends = [(at + 1) * size + min(at + 1, larger) for at in range(self.groups)]
        return [range(first, last) for first, last in zip([0, *ends], ends, strict=False)]

    def run(self, trial: "Trial") -> dict[str, Any]:
        seen: list[dict[str, Any]] = []
        groups = self.stages(len(trial.source.classnames))
        for at, group in enumerate(groups):
            trial.train(group)
            known, last = range(group[-1] + 1), at == len(groups) - 1
            scores = trial.test(trial.source, known, part=["seen", at] if last else ())
            seen.append({"classes": len(known), **scores})
        return {
            "seen": seen,
            "average": fmean(one["accuracy"] for one in seen),
            "first": _first(seen[-1], seen[0]),
        }

    def check_record(self, record: Mapping[str, Any]) -> None:
        for at, _ in enumerate(part_of(record, "results", "seen")):
            check_scores(record, "seen", at)


def _first(last: Mapping[str, Any], first: Mapping[str, Any]) -> float:
    """Mean final accuracy over the classes of the first group that have test images."""
    return fmean(last["per_class"][name] for name in first["per_class"])
