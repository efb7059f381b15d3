"""Options that several commands have: of a backbone, of what a classifier is fitted to, of a bundle. Commands
take them as `Flat` parameters.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Group, Parameter

from dear.backbone.names import BackboneName, BackboneOptions, backbone_or_default, check_model, warn_of_toy
from dear.data.names import check_name
from dear.data.settings import DataSettings
from dear.errors import SettingsError
from dear.methods.registry import PATH
from dear.reading.plain import read_weights

if TYPE_CHECKING:
    from dear.adapters.predictor import Predictor
    from dear.backbone.clip import Clip
    from dear.cluster.jobs import Cluster

Device = Literal["auto", "cpu", "cuda"]
DataName = Annotated[
    str,
    Parameter(
        help="A folder of images (also with the split list of CoOp's code), a table (.csv, .tsv or .jsonl), "
        "a zip, tar or Parquet file, a pattern of these (train-{000..009}.tar), a Hugging Face data set "
        "(hf:OWNER/NAME), or the name of a benchmark or of a task."
    ),
]
BundleName = Annotated[str, Parameter(help="Folder of the bundle, or OWNER/NAME on the hub.")]


def _require_paths(_hint: Any, names: Sequence[str] | None) -> None:
    """Raise ValueError for the name of a method that is no class outside the package."""
    for name in names or ():
        if not PATH.fullmatch(name):
            raise ValueError(f"{name} is no class outside the package: a bundle says what its method is.")


MethodClasses = Annotated[
    list[str] | None,
    Parameter(
        help="The class of the bundle's method, module:Class, if it is outside the package. A bundle only "
        "names this class: dear imports no code unless you name it here.",
        validator=_require_paths,
    ),
]


@Parameter(group=Group("Backbone", sort_key=50))
@dataclass(frozen=True, kw_only=True)
class Backbone(BackboneOptions):
    """A CLIP.

    Attributes:
        device: Where to compute. auto uses the GPU if there is one.
    """

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


@Parameter(group=Group("Backbone and training images", sort_key=50))
@dataclass(frozen=True, kw_only=True)
class FitOptions(Backbone):
    """What a classifier is fitted to, as arguments of `dear.fit`.

    Attributes:
        roles: Role table of the backbone: a file (JSON), or a table of the package, which is discovered,
            ground-truth, published or textspan. discover makes a table from the training images first. By
            default the package's table of the backbone's weights, if it has one.
        shots: Training images of each class. By default all.
        seed: Seed, from which everything random is drawn: few-shot images, which images are left out
            together, order, views and initial parameters.
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


@Parameter(group=Group("Many machines", sort_key=45))
@dataclass(frozen=True)
class ClusterOptions:
    """Where pictures go through the model, if not in this process.

    Attributes:
        cluster: Use a Ray cluster: auto (the running one), local (a temporary one on this machine), or
            ray://HOST:PORT. Each machine needs the same version of dear, and the images at the same paths or
            addresses.
        workers: Processes of the cluster, each with a model. By default one for each GPU, or for each core.
        gpus: GPUs for each of them, for example 0.5. By default one, if there are any.
    """

    cluster: str | None = None
    workers: int | None = None
    gpus: float | None = None

    def find(self, device: Device) -> "Cluster | None":
        """The cluster, if one is to be used. Raises SettingsError for options without one."""
        if self.cluster is None:
            if self.workers is not None or self.gpus is not None:
                raise SettingsError("--workers and --gpus are for a cluster: give --cluster too.")
            return None
        from dear.cluster.jobs import Cluster

        return Cluster(self.cluster, self.workers, 0 if device == "cpu" else self.gpus)


@Parameter(group=Group("Steering", sort_key=40))
@dataclass(frozen=True)
class Steering:
    """Other weights of a bundle's features, without a fit. The result by its own weights stands beside.

    Attributes:
        fusion: Weights of features in place of the learned ones, for the method dear: class=1,color=0. A
            feature that is not named keeps its weight; then all weights are divided by their sum. 0
            switches a feature off.
        decoupled: Score by the class feature alone.
    """

    fusion: list[str] | None = None
    decoupled: bool = False

    def arguments(self) -> dict[str, Any]:
        """Arguments of `Predictor`. Raises SettingsError for weights that are no numbers."""
        return {
            "fusion": None if self.fusion is None else read_weights(self.fusion),
            "decoupled": self.decoupled,
        }


@Parameter(group=Group("Backbone of the bundle", sort_key=50))
@dataclass(frozen=True)
class BundleOptions:
    """How a bundle is loaded.

    Attributes:
        pretrained: Where the backbone's weights are, if they have moved since the fit.
        device: Where to compute. auto uses the GPU if there is one.
    """

    pretrained: str | None = None
    device: Device = "auto"
    method: MethodClasses = None

    def load(self, bundle: str, **options: Any) -> "Predictor":
        """The bundle's predictor. What can be refused without torch is."""
        from dear.adapters.bundle_config import check_bundle

        check_bundle(bundle)
        from dear.adapters.predictor import Predictor

        return Predictor(bundle, self.device, pretrained=self.pretrained, **options)
