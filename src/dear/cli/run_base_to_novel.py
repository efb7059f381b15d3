"""`dear run base-to-novel`: train on half of the classes, test on both halves."""

from pathlib import Path
from typing import Literal

from dear.cli.running import Summary, data_of, plans_of, render, run
from dear.data.settings import DataSettings
from dear.evaluation.experiment import Experiment, Model
from dear.evaluation.launch.machines import Machines
from dear.evaluation.plan import Mask, Select
from dear.methods.declaration import MethodSettings
from dear.training.settings import TrainOptions

__all__ = ["command", "render"]


def command(
    *,
    data: list[str] | None = None,
    methods: list[str] | None = None,
    mask: list[Mask] | None = None,
    model: str = "tiny",
    pretrained: str | None = None,
    roles: Path | None = None,
    seeds: list[int] | None = None,
    shots: int = 16,
    device: Literal["auto", "cpu", "cuda"] = "auto",
    train: TrainOptions = TrainOptions(),  # noqa: B008 (frozen, and its fields become options)
    select: Select = "last",
    dataset: DataSettings = DataSettings(),  # noqa: B008
    out: Path = Path("runs/base-to-novel"),
    dry_run: bool = False,
    start_over: bool = False,
    jobs: int = 1,
    cluster: str | None = None,
    gpus: float | None = None,
    devices: int = 1,
    nodes: int = 1,
    log: Path | None = None,
    **settings: MethodSettings,
) -> Summary:
    """Train on the first half of the classes, test on both halves.

    Each run leaves one record in the output folder; a run whose record is there already is not repeated, and
    one that was cut off goes on where it stopped.

    Args:
        data: Tasks of the Attribute World or benchmarks by name, folders of images, CSV or JSONL files, zips.
            All tasks if not given.
        methods: Methods to compare, of those in docs/methods.md, or all. zero-shot and dear if not given.
        mask: Role masks to run DeAR with; the last three are the paper's ablations of it. "roles" if not
            given.
        model: Backbone: tiny, or an open_clip architecture.
        pretrained: Weights: an open_clip tag, a local file, or random:SEED.
        roles: Role table of these weights: a file (JSON), or discovered, ground-truth or published. The first
            of these that the package has for the weights, if not given.
        seeds: Seeds of the few-shot pick, the order, the views and the initial parameters. 1 if not given.
        shots: Training images a class.
        device: Where to compute; auto takes the GPU if there is one.
        train: Settings of training for all methods; what is not given is as each method is published.
        select: Test the last epoch, or the best one on validation images of the training classes.
        dataset: How data sets are read.
        out: Folder of the run records.
        dry_run: List the runs with an estimate of time and memory; make none.
        start_over: Set a damaged checkpoint aside and start its run over; without it that is an error.
        jobs: Runs at a time, each in a process of its own; on several GPUs they are dealt out in turn.
        cluster: Make the runs on a Ray cluster: auto, local, or ray://HOST:PORT.
        gpus: GPUs a run on the cluster, 0.5 say; one where there are any, if not given.
        devices: Processes that share each batch of a run (data parallel).
        nodes: Machines that share each batch of a run.
        log: Folder for TensorBoard.
        settings: Settings of the methods, as --dear.beta or --coop.tokens.
    """
    experiment = Experiment(
        protocol="base-to-novel",
        out=out,
        data=data_of(data),
        plans=plans_of(methods, settings, mask),
        seeds=(1,) if seeds is None else tuple(seeds),
        shots=(shots,),
        model=Model(model, pretrained, roles),
        train=train,
        select=select,
        dataset=dataset,
        start_over=start_over,
    )
    machines = Machines(device, jobs, cluster, gpus, devices, nodes, log)
    return run([experiment], machines, dry_run=dry_run)
