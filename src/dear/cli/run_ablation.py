"""`dear run ablation`: DeAR's ablations, in base-to-novel."""

from pathlib import Path
from typing import Literal

from dear.cli.running import Summary, ablation_names, data_of, render, run
from dear.data.settings import DataSettings
from dear.evaluation.ablations import METHOD, ablation_plans
from dear.evaluation.experiment import Experiment, Model
from dear.evaluation.launch.machines import Machines
from dear.evaluation.plan import Select
from dear.methods.declaration import MethodSettings
from dear.training.settings import TrainOptions

__all__ = ["command", "render"]


def command(
    *,
    data: list[str] | None = None,
    of: list[str] | None = None,
    without: list[str] | None = None,
    model: str = "tiny",
    pretrained: str | None = None,
    roles: Path | None = None,
    seeds: list[int] | None = None,
    shots: int = 16,
    device: Literal["auto", "cpu", "cuda"] = "auto",
    train: TrainOptions = TrainOptions(),  # noqa: B008 (frozen, and its fields become options)
    select: Select = "last",
    dataset: DataSettings = DataSettings(),  # noqa: B008
    out: Path = Path("runs/ablation"),
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
    """Run DeAR's ablations in base-to-novel: each changes one thing of the settings that are given.

    Each run leaves one record in the output folder; a run whose record is there already is not repeated, and
    one that was cut off goes on where it stopped.

    Args:
        data: Tasks of the Attribute World or benchmarks by name, folders of images, CSV or JSONL files, zips.
            All tasks if not given.
        of: Ablations: mask, loss, inference, quantile, attributes, beta, first. All if not given.
        without: Rows to leave out, by their labels: 'K = 7', say, which needs seven known concepts.
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
        settings: Settings of DeAR, as --dear.tokens; not those that a chosen ablation varies.
    """
    experiment = Experiment(
        protocol="base-to-novel",
        out=out,
        data=data_of(data),
        plans=ablation_plans(ablation_names() if of is None else of, settings[METHOD], without=without or ()),
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
