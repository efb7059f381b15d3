"""`dear run base-to-novel`: train on half of the classes, test on both halves."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from rich.console import Console

from dear.data.settings import DataSettings
from dear.evaluation.plan import Mask, Plan
from dear.methods.settings import DearSettings
from dear.report.tables import Table
from dear.training.settings import TrainSettings


@dataclass(frozen=True)
class Summary:
    """The result table (percent) and where the records are."""

    table: Table
    records: Path
    runs: int


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
    dear: DearSettings = DearSettings(),  # noqa: B008 (frozen, and its fields become options)
    train: TrainSettings = TrainSettings(),  # noqa: B008
    dataset: DataSettings = DataSettings(),  # noqa: B008
    out: Path = Path("runs/base-to-novel"),
) -> Summary:
    """Train on the first half of the classes, test on both halves.

    Each run leaves one record in the output folder; a run whose record is there already is not repeated.

    Args:
        data: Tasks of the Attribute World or benchmarks by name, folders of images, CSV or JSONL files, zips.
            All tasks if not given.
        methods: Methods to compare: zero-shot, dear. Both if not given.
        mask: Role masks to run DeAR with; the last three are the paper's ablations of it. "roles" if not
            given.
        model: Backbone: tiny, or an open_clip architecture.
        pretrained: Weights: an open_clip tag, a local file, or random:SEED.
        roles: Role table of these weights: a file, or discovered, ground-truth or published for the package's
            own; the first of these that there is if not given.
        seeds: Seeds of the few-shot pick, the order, the views and the initial parameters. 1 if not given.
        shots: Training images a class.
        device: Where to compute; auto takes the GPU if there is one.
        dear: Settings of DeAR.
        train: Settings of training.
        dataset: How data sets are read.
        out: Folder of the run records.
    """
    from dear.backbone.load import load_clip
    from dear.cli.progress import RunProgress
    from dear.data.dataset import load_dataset
    from dear.data.world.tasks import downstream_names
    from dear.evaluation.runs import run_all
    from dear.methods.registry import known_method
    from dear.report.tables import base_to_novel_table
    from dear.roles.packaged import role_table

    names = [known_method(name) for name in methods or ["zero-shot", "dear"]]
    masks: list[Mask] = mask or ["roles"]
    plans = [
        plan
        for name in names
        for plan in ([Plan(name, m) for m in masks] if name == "dear" else [Plan(name)])
    ]
    datasets = [load_dataset(name, dataset) for name in data or downstream_names()]
    clip = load_clip(model, pretrained, device=device)
    table = role_table(clip, roles) if "dear" in names else None
    chosen = seeds or [1]
    with RunProgress(len(datasets) * len(plans) * len(chosen), train.epochs) as progress:
        records = run_all(
            clip,
            datasets,
            plans,
            seeds=chosen,
            shots=shots,
            roles=table,
            settings=dear,
            training=train,
            out=out,
            progress=progress,
        )
    return Summary(base_to_novel_table(records), out, len(records))


def render(result: Summary, console: Console) -> None:
    """Show the table and where the records are."""
    result.table.render(console)
    console.print(f"{result.runs} run records in {result.records}")
