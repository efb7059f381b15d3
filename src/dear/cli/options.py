"""Options that several commands have: of a backbone, of what a classifier is fitted to, of a bundle. Commands
take them as `Flat` parameters.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from dear.backbone.names import BackboneName, backbone_or_default, check_model, warn_of_toy
from dear.data.names import check_name
from dear.data.settings import DataSettings

if TYPE_CHECKING:
    from dear.adapters.predictor import Predictor
    from dear.backbone.clip import Clip

Device = Literal["auto", "cpu", "cuda"]


@dataclass(frozen=True)
class Backbone:
    """A CLIP.

    Attributes:
        model: Backbone: an open_clip architecture, lite or tiny. If not given, ViT-B-16 with
            laion2b_s34b_b88k, which is fetched from the hub once (about 600 MB); for a task of the Attribute
            World, tiny.
        pretrained: Weights: an open_clip tag, a local file, or random:SEED.
        device: Where to compute; auto uses the GPU if there is one.
    """

    model: str | None = None
    pretrained: str | None = None
    device: Device = "auto"

    def check(self) -> None:
        """Raise UnknownNameError for an unknown model, without loading torch."""
        check_model(self.model)

    def name(self, *, world: bool) -> BackboneName:
        """The model and its weights; by default those for drawings of the Attribute World, or photographs."""
        return backbone_or_default(self.model, self.pretrained, world=world)

    def load(self, *, world: bool) -> "Clip":
        """Load it, with a warning of the tiny CLIP on photographs."""
        from dear.backbone.loading.load import load_clip

        name = self.name(world=world)
        warn_of_toy(name.model, world=world)
        return load_clip(*name, device=self.device)


@dataclass(frozen=True)
class FitOptions(Backbone):
    """What a classifier is fitted to, as arguments of `dear.fit`.

    Attributes:
        roles: Role table of these weights: a file (JSON), discovered, ground-truth, published or textspan.
            discover finds one from the training images first. By default the package's table, if it has one.
        shots: Training images per class. By default all.
        seed: Seed of the few-shot pick, of what is left out together, of order, views and initial parameters.
        dataset: How the data set is read.
    """

    roles: Path | None = None
    shots: int | None = None
    seed: int = 1
    dataset: DataSettings = field(default_factory=DataSettings)

    def check_all(self, sources: Sequence[str]) -> None:
        """Raise for names of data sets and of the model that are wrong, without loading torch."""
        for source in sources:
            check_name(source, self.dataset)
        self.check()


@dataclass(frozen=True)
class BundleOptions:
    """How a bundle is loaded.

    Attributes:
        pretrained: Location of the backbone's weights, if they have moved.
        device: Where to compute; auto uses the GPU if there is one.
    """

    pretrained: str | None = None
    device: Device = "auto"

    def load(self, bundle: str, **options: Any) -> "Predictor":
        """The bundle's predictor. What can be refused without torch is."""
        from dear.adapters.bundle_config import check_bundle

        check_bundle(bundle)
        from dear.adapters.predictor import Predictor

        return Predictor(bundle, self.device, pretrained=self.pretrained, **options)
