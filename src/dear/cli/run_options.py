"""The options that the `dear run` commands share, each declared once: parsing flattens these classes."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from dear.data.settings import DataSettings
from dear.evaluation.experiment import Experiment, Model
from dear.evaluation.plan import Plan, RoleVariant, Select
from dear.evaluation.protocols.base import Protocol
from dear.evaluation.recipe import data_names
from dear.training.settings import TrainOptions


@dataclass(frozen=True)
class MethodOptions:
    """What is run.

    Attributes:
        methods: Methods to compare, of those in docs/methods.md, or all. If not given, zero-shot and dear,
            without those that do not suit the protocol.
        role_variant: Variants of the role table to run DeAR with; the last three are the paper's ablations
            of its mask. If not given "roles", the unchanged table.
    """

    methods: list[str] | None = None
    role_variant: list[RoleVariant] | None = None


@dataclass(frozen=True)
class RunOptions:
    """What it runs on, and where the records are written.

    Attributes:
        data: Data sets: tasks of the Attribute World ("world" for its twelve) or benchmarks by name, folders
            of images, CSV or JSONL files, zips. Those of the protocol if not given.
        model: Backbone: an open_clip architecture, or tiny. If not given, ViT-B-16 with laion2b_s34b_b88k,
            which is fetched from the hub once (about 600 MB); for tasks of the Attribute World alone, tiny.
        pretrained: Weights: an open_clip tag, a local file, or random:SEED.
        roles: Role table of these weights: a file (JSON), or discovered, ground-truth or published. If not
            given, the first of these that the package has for the weights.
        seeds: Seeds of the few-shot pick, the order, the views and the initial parameters. 1 if not given.
        shots: Training images per class; few-shot takes several numbers. Those of the protocol if not given.
        train: Settings of training for all methods; options not given are as published for each method.
        select: Test the last epoch, or the best one on validation images of the training classes.
        dataset: How data sets are read.
        out: Folder of the run records; by default a folder in runs/ named after the command.
        dry_run: List the runs without making them.
        start_over: Set a damaged checkpoint aside and start its run over; without it that is an error.
    """

    data: list[str] | None = None
    model: str | None = None
    pretrained: str | None = None
    roles: Path | None = None
    seeds: list[int] | None = None
    shots: list[int] | None = None
    train: TrainOptions = field(default_factory=TrainOptions)
    select: Select = "last"
    dataset: DataSettings = field(default_factory=DataSettings)
    out: Path | None = None
    dry_run: bool = False
    start_over: bool = False

    def experiment(self, command: str, protocol: Protocol, plans: Sequence[Plan]) -> Experiment:
        """The experiment that these options describe for a command. Raises DearError."""
        protocol, data = protocol.arranged(data_names(protocol.data if self.data is None else self.data))
        return Experiment(
            protocol=protocol,
            out=self.out or Path("runs") / command,
            data=data,
            plans=tuple(plans),
            seeds=(1,) if self.seeds is None else tuple(self.seeds),
            shots=protocol.shots if self.shots is None else tuple(self.shots),
            model=Model(self.model, self.pretrained, self.roles),
            train=self.train,
            select=self.select,
            dataset=self.dataset,
            start_over=self.start_over,
        )
