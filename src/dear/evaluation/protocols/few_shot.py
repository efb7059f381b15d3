"""Few-shot learning: train on a few images of every class, test among all classes. Source: CoOp (IJCV 2022),
section 4.1.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

from dear.evaluation.protocols.base import Protocol, TrialLike
from dear.methods.declaration import Declaration


@dataclass(frozen=True)
class FewShot(Protocol):
    """Train on a few images of every class, test among all classes."""

    name: ClassVar[str] = "few-shot"
    summary: ClassVar[str] = "Train on a few images of every class, test among all."
    trains_as: ClassVar[tuple[str, ...]] = ("fit",)
    shots: ClassVar[tuple[int, ...]] = (1, 2, 4, 8, 16)
    several_shots: ClassVar[bool] = True
    needs_open_vocabulary: ClassVar[bool] = False
    unlabeled: ClassVar[bool] = True
    scored: ClassVar[tuple[str, ...]] = ("all",)

    def shots_of(self, method: Declaration, shots: int) -> int:
        """A method that does not train runs with 0 shots."""
        return shots if method.trains else 0

    def test(self, trial: TrialLike) -> dict[str, Any]:
        return {"all": trial.test(trial.source, range(len(trial.source.classnames)), part="all").scores}
