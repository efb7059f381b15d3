"""Attribute-conditioned retrieval: train on the base classes of a data set, then retrieve among the test
images of all its classes [ours] with each feature. Source: the paper, Figure 3.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from dear.errors import DataError, SettingsError
from dear.evaluation.protocols.base import TrialLike
from dear.evaluation.protocols.base_to_novel import BaseToNovel
from dear.methods.declaration import Declaration
from dear.methods.registry import methods_with_roles

if TYPE_CHECKING:
    from dear.data.dataset import Dataset


@dataclass(frozen=True)
class Retrieval(BaseToNovel):
    """Train on the base classes, then retrieve among the test images of all classes with each feature.

    Attributes:
        queries: Numbers of the test images, from 0, whose neighbors the report shows. By default three that
            are evenly spread over the test images.
    """

    name: ClassVar[str] = "retrieval"
    summary: ClassVar[str] = "Retrieve images by each attribute's feature."
    data: ClassVar[tuple[str, ...]] = ("travel-posters",)
    scored: ClassVar[tuple[str, ...]] = ()

    queries: tuple[int, ...] = ()

    def test(self, trial: TrialLike) -> dict[str, Any]:
        from dear.evaluation.retrieve import retrieve

        return retrieve(trial.method, trial.source, self.queries)

    def check_method(self, method: Declaration) -> None:
        super().check_method(method)
        if method.roles is None:
            raise SettingsError(
                f"{method.name} has no attribute features: retrieval requires "
                f"{' or '.join(methods_with_roles())}."
            )

    def check_data(self, trained_on: "Dataset", targets: Sequence["Dataset"]) -> None:
        del targets
        if len(trained_on.test) < 2:
            raise DataError(f"{trained_on.name} has fewer than two test images, among which to retrieve.")
        last = len(trained_on.test) - 1
        if wrong := [number for number in self.queries if not 0 <= number <= last]:
            raise DataError(
                f"queries has {wrong[0]}, but the test images of {trained_on.name} have the numbers "
                f"0 to {last}."
            )
