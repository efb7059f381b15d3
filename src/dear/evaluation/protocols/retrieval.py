"""Attribute-conditioned retrieval: train on the base classes of a task of the Attribute World, where all
factors of every image are known, then retrieve among its test images with each feature.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NotRequired, TypedDict

from dear.errors import DataError, SettingsError
from dear.evaluation.protocols.base import Trial
from dear.evaluation.protocols.base_to_novel import BaseToNovel
from dear.methods.registry import methods_with_roles
from dear.reading.typed import Share, typed

if TYPE_CHECKING:
    from dear.data.dataset import Dataset
    from dear.evaluation.plan import Plan


class Neighbour(TypedDict):
    """An image, as base64 PNG, with its known factors."""

    image: str
    factors: NotRequired[dict[str, str | int]]


class Query(Neighbour):
    """A query with its neighbours for each feature."""

    title: NotRequired[str]
    neighbours: dict[str, list[Neighbour]]


class Results(TypedDict):
    """Precision by feature and factor, and that of randomly drawn neighbours; fractions."""

    queries: NotRequired[list[Query]]
    precision: NotRequired[dict[str, dict[str, Share]]]
    chance: NotRequired[dict[str, Share]]


@dataclass(frozen=True)
class Retrieval(BaseToNovel):
    """Train on the base classes of world tasks, then retrieve among their test images with each feature."""

    name: ClassVar[str] = "retrieval"
    summary: ClassVar[str] = "Retrieve by each attribute's feature on a world task."
    position: ClassVar[int] = 6
    data: ClassVar[tuple[str, ...]] = ("travel-posters",)

    def run(self, trial: Trial) -> dict[str, Any]:
        from dear.data.world.tasks import WorldImages
        from dear.retrieval.world import world_retrieval

        trial.train(self.training_classes(len(trial.source.classnames)))
        images = trial.source.test
        assert isinstance(images, WorldImages)  # ensured by check_data
        return world_retrieval(trial.method, images)

    def check_plan(self, plan: "Plan") -> None:
        super().check_plan(plan)
        if not plan.needs_roles:
            raise SettingsError(
                f"{plan.method} has no attribute features: retrieval requires "
                f"{' or '.join(methods_with_roles())}."
            )

    def check_data(self, trained_on: "Dataset", targets: Sequence["Dataset"]) -> None:
        from dear.data.world.tasks import WorldImages

        del targets
        if not isinstance(trained_on.test, WorldImages):
            raise DataError(
                f"{trained_on.name} is not a task of the Attribute World, where the factors of every image "
                "are known. To search your own images: dear index build."
            )

    def check_record(self, record: Mapping[str, Any]) -> None:
        typed(record["results"], Results, "", "results")
