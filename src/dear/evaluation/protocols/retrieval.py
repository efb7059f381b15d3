"""Attribute-conditioned retrieval: train on the base classes of a task of the Attribute World, where all
factors of every image are known, then retrieve among its test images with each feature.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from dear.errors import DataError, SettingsError
from dear.evaluation.protocols.base_to_novel import BaseToNovel
from dear.methods.declaration import Declaration
from dear.methods.registry import methods_with_roles

if TYPE_CHECKING:
    from dear.data.dataset import Dataset
    from dear.evaluation.trial import Trial


@dataclass(frozen=True)
class Retrieval(BaseToNovel):
    """Train on the base classes of world tasks, then retrieve among their test images with each feature."""

    name: ClassVar[str] = "retrieval"
    summary: ClassVar[str] = "Retrieve by each attribute's feature on a world task."
    data: ClassVar[tuple[str, ...]] = ("travel-posters",)
    scored: ClassVar[tuple[str, ...]] = ()

    def run(self, trial: "Trial") -> dict[str, Any]:
        from dear.data.world.tasks import WorldImages
        from dear.evaluation.protocols.world_retrieval import world_retrieval

        trial.train(self.training_classes(len(trial.source.classnames)))
        images = trial.source.test
        assert isinstance(images, WorldImages)  # ensured by check_data
        return world_retrieval(trial.method, images)

    def check_method(self, method: Declaration) -> None:
        super().check_method(method)
        if not method.needs_roles:
            raise SettingsError(
                f"{method.name} has no attribute features: retrieval requires "
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
