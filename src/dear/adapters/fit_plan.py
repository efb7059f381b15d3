"""What `dear.fit` is asked for, and all of it that can be refused before an image is read."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dear.adapters.bundle_config import check_writable, read_config
from dear.adapters.labels import require_applied
from dear.adapters.operating import OperatingGoal
from dear.backbone.loading.load import find_weights
from dear.backbone.names import BackboneName, backbone_or_default
from dear.curation.issues import REFUSED_SHARE, REVIEW_CSV, RefusedShare
from dear.data.loading import is_several, of_world
from dear.data.settings import DataSettings
from dear.errors import SettingsError
from dear.evaluation.resolve import MethodSetup, Select, warn_of_unused_training
from dear.methods.registry import AUTO, FIT_METHOD
from dear.progress import Progress, Steps
from dear.reading.files import expanded
from dear.reading.typed import check_value
from dear.training.settings import check_training
from dear.writing import locked


@dataclass(eq=False)
class FitPlan:
    """The arguments of `dear.fit`, which explains them, and what follows from them. The constructor raises
    what `dear.fit` can raise without reading images.

    Attributes:
        folder, earlier: The folders of the bundle, and of the earlier one.
        config: The config.json of the earlier bundle; empty without one.
        is_auto, setup: True if the method is chosen by the training images; the method with its settings,
            `FIT_METHOD` until it is chosen.
        reading: How the data is read. Where a fit is cross-validated, no image is kept aside for testing.
        goal: What is promised of the images that are decided.
    """

    data: Any
    out: Path | str | None = None
    method: str | None = None
    model: str | None = None
    pretrained: str | None = None
    roles: Path | str | None = None
    shots: int | None = None
    seed: int = 1
    settings: Mapping[str, Any] | None = None
    train: Mapping[str, Any] | None = None
    select: Select = "last"
    dataset: DataSettings | None = None
    unlabeled: Any = None
    add_classes: Sequence[str] = ()
    review: bool = True
    refuse: float = REFUSED_SHARE
    precision: float | None = None
    costs: Mapping[Any, float] | Path | str | None = None
    per_class: bool = False
    continue_from: Path | str | None = None
    overwrite: bool = False
    device: str = "auto"
    progress: Progress | None = None
    verbose: bool = True
    command: str = ""

    def __post_init__(self) -> None:
        if self.out is not None and not isinstance(self.out, str | Path):
            raise SettingsError(
                f"out is a {type(self.out).__name__}, not a folder: images and labels are a pair, as in "
                "fit((images, labels))."
            )
        folder = self.folder = None if self.out is None else expanded(self.out)
        if folder is not None:
            check_writable(folder, overwrite=self.overwrite)
            if self.review:
                require_applied(folder / REVIEW_CSV, self.data)
        self.earlier = None if self.continue_from is None else expanded(self.continue_from)
        self.config = {} if self.earlier is None else read_config(self.earlier)
        if self.earlier is not None and self.model is None and self.pretrained is None:
            self.model, self.pretrained = (
                self.config["backbone"].get(key) for key in ("model", "pretrained")
            )
        check_value("refuse", self.refuse, RefusedShare)
        self.train = check_training(self.train or {})
        self.goal = OperatingGoal.of(self.precision, self.costs, per_class=self.per_class)
        method, self.is_auto = self.method or FIT_METHOD, (self.method or AUTO) == AUTO
        if self.is_auto and self.settings:
            raise SettingsError(
                "settings are those of one method, which is not named: give method too, or omit the settings."
            )
        setup = self.setup = MethodSetup(FIT_METHOD if self.is_auto else method, self.settings or {})
        self.reading = self.dataset or DataSettings()
        if self.is_auto or setup.declared.cheap:
            share = self.config.get("training", {}).get("held_out", 0.0)
            self.reading = self.reading.with_test_share(share)
        warn_of_unused_training(setup, setup.declared.settings(**setup.settings), self.train)
        sources = self.data if is_several(self.data) else ()
        sources = [self.data] if isinstance(self.data, str | Path) else sources
        for source in sources:
            if folder is not None and folder.resolve().is_relative_to(expanded(source).resolve()):
                raise SettingsError(
                    f"{folder} is inside of the data {source}: the next fit would take it for a class. Give "
                    "another folder."
                )
        if sources:
            find_weights(*self.backbone(world=of_world(map(str, sources))))

    def backbone(self, *, world: bool) -> BackboneName:
        """The backbone for data, which is of the Attribute ``world`` or not."""
        return backbone_or_default(self.model, self.pretrained, world=world)

    @contextmanager
    def running(self) -> Iterator[Progress]:
        """The context of the fit, which shows progress, and in which nobody else writes into its folder."""
        with ExitStack() as stack:
            if self.folder is not None:
                stack.enter_context(locked(self.folder, self.reading.cache_folder()))
            yield self.progress if self.progress is not None else stack.enter_context(Steps())
