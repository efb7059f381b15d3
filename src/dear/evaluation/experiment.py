"""An experiment: a protocol over methods, data sets, shots and seeds, which is split into its runs, and the
machines that make them. Options, recipes and Python all build an `Experiment`. Light to import, so that
commands and recipes can be checked without loading torch.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from dear.backbone.names import BackboneName, BackboneOptions, backbone_or_default
from dear.data.settings import DataSettings
from dear.errors import DataError, SettingsError, UnknownNameError
from dear.evaluation.protocols.base import Protocol
from dear.evaluation.records import file_part
from dear.evaluation.resolve import MethodSetup, ResolvedSettings, Select, resolve
from dear.reading.typed import (
    NonNegativeFloat,
    PositiveInt,
    Range,
    Seed,
    check_fields,
    overrides_class,
    shown,
)
from dear.training.settings import TrainSettings, check_training

WORLD, WORLD_LARGE = "world", "world-large"
"""Names in a list of data sets for the twelve small tasks of the Attribute World, and for its tasks with many
classes."""

if TYPE_CHECKING:
    TrainOverrides = Mapping[str, Any]
    """The training settings that the user sets, by field; commands make their options of it."""
    DataOverrides = Mapping[str, Any]
    """The same for settings of how data sets are read."""
else:
    TrainOverrides, DataOverrides = overrides_class(TrainSettings), overrides_class(DataSettings)


@dataclass(frozen=True, kw_only=True)
class RunOptions(BackboneOptions):
    """What can be set of an experiment by an option, or by a key of a recipe.

    Attributes:
        data: Data sets: folders of images, CSV or JSONL files, zips, and names of benchmarks and of tasks of
            the Attribute World ("world" stands for its twelve small tasks, "world-large" for those with many
            classes). By default the data of the protocol.
        roles: Role table of the backbone: a file (JSON), or a table of the package, which is discovered,
            ground-truth, published or textspan. By default the package's table of the weights, if it has
            one.
        seeds: Seeds, each of which makes runs of its own. From a seed the few-shot images, their order and
            views, and the initial parameters are drawn.
        shots: Training images of each class. few-shot takes several numbers. By default the number of the
            protocol.
        train: Settings of training; by default as published for the method.
        select: Test the last epoch, or the epoch that is best on validation images of the training classes.
            These also choose among the values of settings that an entry of a recipe has under "each".
        dataset: How data sets are read.
        out: Folder of the run records. By default a folder in runs/ with the name of the command.
        keep_weights: Save the trained parameters beside each record, from which `dear.load_run` builds the
            method again. A run that has a record without them is made again.
    """

    data: tuple[str, ...] | None = None
    roles: Path | None = None
    seeds: tuple[Seed, ...] = (1,)
    shots: tuple[PositiveInt, ...] | None = None
    train: TrainOverrides = field(default_factory=dict)
    select: Select = "last"
    dataset: DataSettings = field(default_factory=DataSettings)
    out: Path | None = None
    keep_weights: bool = False


@dataclass(frozen=True, kw_only=True)
class Experiment(RunOptions):
    """A protocol over data sets, methods, shots and seeds. What is not given is filled in from the protocol.
    Raises DearError for settings that do not go together.

    Attributes:
        data: Data sets: for training and test, or for test alone where the protocol trains on one.
        out: Folder of the records.
        about: A recipe's description of itself: the table or figure, source, hardware, time.
    """

    protocol: Protocol
    methods: tuple[MethodSetup, ...]
    data: tuple[str, ...] = None  # type: ignore[assignment]  # filled in, as are shots and out
    shots: tuple[PositiveInt, ...] = None  # type: ignore[assignment]
    out: Path = None  # type: ignore[assignment]
    about: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        names = expand_data(self.protocol.data if self.data is None else self.data)
        if "" in (*names, self.protocol.trained_on):
            raise DataError("a data set's name is empty: give a name or a path.")
        protocol, data = self.protocol.arrange(names)
        filled = {
            "protocol": protocol,
            "data": data,
            "seeds": tuple(self.seeds),
            "shots": tuple(protocol.shots if self.shots is None else self.shots),
            "train": check_training(self.train),
            "out": self.out or Path(f"runs/{protocol.name}"),
        }
        for name, value in filled.items():
            object.__setattr__(self, name, value)
        check_fields(self)
        self._check()

    def _check(self) -> None:
        for kind, values in {"data set": self.data, "method": self.methods, "seed": self.seeds}.items():
            if not values:
                raise DataError(f"there is no {kind} to run {self.protocol.name} with.")
        source = self.protocol.trained_on
        if source in self.data:
            raise DataError(f"{source} is both the source and a target: remove it from the targets.")
        names_of_data = {
            name for path in filter(None, (source, *self.data)) for name in (path, Path(path).name)
        }
        for name in self.dataset.named_groups:
            if name not in names_of_data:
                raise UnknownNameError("data set of --dataset.groups", name, self.data)
        if "" in (self.model, self.pretrained):
            raise SettingsError("the name of the model or of its weights is empty: omit it, or give one.")
        self.protocol.check_shots(self.shots)
        names = dict[tuple[str, str], MethodSetup]()
        for setup in self.methods:
            if setup != names.setdefault((setup.method, file_part(setup.variant or "")), setup):
                raise SettingsError(
                    f"two of the methods are called {setup.method} ({shown(setup.variant)}) in names of "
                    "files, which have the letters and digits of English alone: label each differently."
                )
            self.protocol.check_method(setup.declared)
            if setup.each and self.select != "val":
                raise SettingsError(
                    f"each of {setup.method} has values that validation images choose among: set select: val."
                )
            self.settings_of(setup)

    def settings_of(self, setup: MethodSetup) -> list[ResolvedSettings]:
        """All settings of the runs of a method. Raises SettingsError."""
        from dear.data.sources.benchmarks import standard_name

        source = self.protocol.trained_on
        return [
            resolve(self.protocol, candidate, standard_name(name), shots, self.train)
            for name in (self.data if source is None else [source])
            for shots in self.shots
            for candidate in setup.candidates()
        ]

    @property
    def recipe(self) -> str:
        """The name of its recipe; "" without one."""
        return str(self.about.get("recipe") or "")

    @property
    def named_by(self) -> str:
        """Who named the backbone, for messages: its recipe; "" if the user did."""
        named = {"model", "pretrained"} & {*(self.about.get("options") or ())}
        return f"the recipe {self.recipe}" if self.recipe and not named else ""

    @property
    def world(self) -> bool:
        """True if all data sets are tasks of the Attribute World."""
        from dear.data.loading import of_world

        return of_world(self.names)

    @property
    def backbone(self) -> BackboneName:
        """The backbone of all runs: the named one, or the usual one for the data sets."""
        return backbone_or_default(self.model, self.pretrained, world=self.world)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all data sets, first that of the source if the protocol trains on one."""
        return tuple(filter(None, (self.protocol.trained_on, *self.data)))

    def runs(self) -> list["Run"]:
        """The runs: of each method, seed and number of shots on each data set, or on all targets of a source;
        grouped by data set so that what they share is computed once.
        """
        on_all = self.protocol.trained_on is not None
        runs = [
            Run(self, data, setup, seed, self.protocol.shots_of(setup.declared, shots))
            for data in ([self.names] if on_all else [(name,) for name in self.data])
            for seed, shots, setup in product(self.seeds, self.shots, self.methods)
        ]
        return [*{(run.data, run.seed, run.shots, run.setup): run for run in runs}.values()]


@dataclass(frozen=True)
class Run:
    """One run of an experiment: names and settings, and nothing that has to be loaded, so that it can be sent
    to another process.

    Attributes:
        experiment: What it has in common with the other runs: protocol, backbone, training, folder.
        data: Names of its data sets: the one that is trained on, followed by the other ones.
        shots: Training images of each class; 0 for a method that does not train, where the protocol says so.
        record: The file of its record, absolute because other processes may have other working folders.
        key: The key of its record. These two are filled in once all that the run needs has been found.
    """

    experiment: Experiment
    data: tuple[str, ...]
    setup: MethodSetup
    seed: int
    shots: int
    record: Path = None  # type: ignore[assignment]
    key: str = ""

    def identifying_facts(self) -> dict[str, Any]:
        """The facts that identify the run in a list of runs."""
        names = {"dataset": self.data[0], "method": self.setup.method, "variant": self.setup.variant}
        return names | {"seed": self.seed, "shots": self.shots}


def expand_data(names: Sequence[str]) -> tuple[str, ...]:
    """Replace "world" and "world-large" by the names of their tasks, and leave out repeated names."""
    from dear.world.names import downstream_names

    sets = {WORLD: downstream_names(), WORLD_LARGE: downstream_names(size="large")}
    return tuple(dict.fromkeys(chain.from_iterable(sets.get(name, [name]) for name in names)))


@dataclass(frozen=True)
class Machines:
    """Where runs are computed.

    Attributes:
        device: Where to compute. auto uses the GPU if there is one.
        jobs: Runs at a time, each in its own process. Several GPUs are assigned in turn.
        cluster: Make the runs on a Ray cluster: auto, local, or ray://HOST:PORT.
        gpus: GPUs for each run on the cluster, for example 0.5. By default one, if there are any.
        log: Folder for TensorBoard files with the losses, learning rate and validation score of each epoch.
    """

    device: Literal["auto", "cpu", "cuda"] = "auto"
    jobs: Annotated[int, Range(1, 1000)] = 1
    cluster: str | None = None
    gpus: NonNegativeFloat | None = None
    log: Path | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        if self.jobs > 1 and self.cluster is not None:
            raise SettingsError("--jobs and --cluster: choose one.")
        if self.log is not None and self.cluster is not None:
            raise SettingsError("--log is for runs on this machine: omit it, or --cluster.")
        if self.gpus is not None and self.cluster is None:
            raise SettingsError("--gpus is for runs on a cluster: give --cluster too.")
