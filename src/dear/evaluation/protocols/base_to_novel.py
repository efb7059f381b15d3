"""Base-to-novel generalization: train on the first half of the classes, and test on each half among its own
classes; we also test among all classes ("joint"). Source: CoCoOp (CVPR 2022), section 4.1; the paper,
section 4.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from dear.errors import DataError
from dear.evaluation.protocols.base import Protocol, TrialLike
from dear.methods.declaration import Novelty

if TYPE_CHECKING:
    from dear.data.dataset import Dataset


@dataclass(frozen=True)
class BaseToNovel(Protocol):
    """Train on the first half of the classes, test on both halves."""

    name: ClassVar[str] = "base-to-novel"
    summary: ClassVar[str] = "Train on half of the classes, test on both halves."
    novelty: ClassVar[Novelty | None] = "classes"
    unlabeled: ClassVar[bool] = True
    scored: ClassVar[tuple[str, ...]] = ("base", "novel")

    def training_classes(self, classes: int) -> Sequence[int]:
        from dear.data.fewshot import base_novel

        return base_novel(classes)[0]

    def check_data(self, trained_on: "Dataset", targets: Sequence["Dataset"]) -> None:
        from dear.data.fewshot import base_novel

        super().check_data(trained_on, targets)
        tested = {*trained_on.test.labels.tolist()}
        for half, classes in zip(("base", "novel"), base_novel(len(trained_on.classnames)), strict=True):
            if not tested & {*classes}:
                raise DataError(
                    f"{trained_on.name} has no test image of any {half} class: give each class more images."
                )

    def test(self, trial: TrialLike) -> dict[str, Any]:
        from dear.data.fewshot import base_novel

        base, novel = base_novel(len(trial.source.classnames))
        on_base = trial.test(trial.source, base, part="base", keep_features=True)
        on_novel = trial.test(trial.source, novel, part="novel", trained=False, keep_features=True)
        hm = harmonic_mean(on_base.scores["accuracy"], on_novel.scores["accuracy"])
        joint: dict[str, Any] = dict(zip(self.scored, trial.test_jointly(on_base, on_novel), strict=True))
        joint["hm"] = harmonic_mean(*(joint[half]["accuracy"] for half in self.scored))
        return {"base": on_base.scores, "novel": on_novel.scores, "hm": hm, "joint": joint}


def harmonic_mean(base: float, novel: float) -> float:
    """2 b n / (b + n), in the unit of the two; 0 if either is 0. Source: the paper, base-to-novel."""
    return 2 * base * novel / (base + novel) if base and novel else 0.0
