"""DeAR's options beyond the paper, judged on the check images of the eight tasks that the world was set on.

    python benchmarks/beyond.py --out runs/beyond --jobs 2      # some minutes
    python benchmarks/beyond.py --out runs/beyond --table

Test images are not used. Runs whose records are there are not repeated.
"""

import argparse
import json
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from statistics import fmean

import torch

from dear.backbone.load import load_clip
from dear.data.loading import load_for_checks
from dear.data.world.tasks import downstream_names
from dear.evaluation.plan import Plan
from dear.evaluation.runs import run_all
from dear.evaluation.schema import harmonic_mean
from dear.methods.dear import DearSettings
from dear.report.intervals import paired
from dear.roles.packaged import role_table
from dear.training.settings import TrainOptions

FIRST = "default"
# By name: DeAR's settings, and the training options that differ from its published ones.
VARIANTS: dict[str, tuple[DearSettings, TrainOptions]] = {
    FIRST: (DearSettings(), TrainOptions()),
    "beta 0.9 to 0.1": (DearSettings(beta_last=0.1), TrainOptions()),
    "4 tokens per attribute": (DearSettings(tokens=4), TrainOptions()),
    "batch 4": (DearSettings(), TrainOptions(batch=4)),
    # The next came after test results of the mask ablation had been seen (docs/study.md).
    "only read": (DearSettings(read_only=True), TrainOptions()),
    "only read, beta 0.9 to 0.1": (DearSettings(read_only=True, beta_last=0.1), TrainOptions()),
    "only read, batch 4": (DearSettings(read_only=True), TrainOptions(batch=4)),
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="folder of the records")
    parser.add_argument("--seeds", default="1")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--table", action="store_true", help="print the table of the folder; run nothing")
    given = parser.parse_args()
    if not given.table:
        seeds = [int(seed) for seed in given.seeds.split(",")]
        run = partial(run_task, out=given.out, seeds=seeds)
        with ProcessPoolExecutor(given.jobs, mp_context=get_context("spawn")) as pool:
            list(pool.map(run, downstream_names("calibrated")))
    table(given.out)


def run_task(task: str, out: Path, seeds: list[int]) -> None:
    torch.set_num_threads(1)
    clip = load_clip("tiny")
    for name, (settings, options) in VARIANTS.items():
        run_all(
            clip,
            [load_for_checks(task)],
            [Plan("dear", settings=settings, label=None if name == FIRST else name)],
            seeds=seeds,
            roles=role_table(clip),
            training=options,
            out=out,
        )


def table(folder: Path) -> None:
    """Base, novel and HM of each variant, and the difference of its HM to the default's over tasks."""
    halves: dict[str, dict[str, list[tuple[float, float]]]] = {name: {} for name in VARIANTS}
    for path in sorted(folder.glob("*.json")):
        record = json.loads(path.read_text(encoding="utf-8"))
        pair = tuple(100 * record["results"][half]["accuracy"] for half in ("base", "novel"))
        halves[record["variant"] or FIRST].setdefault(record["dataset"]["name"], []).append(pair)
    hms = {
        name: {task: fmean(harmonic_mean(*pair) for pair in pairs) for task, pairs in tasks.items()}
        for name, tasks in halves.items()
    }
    print("| variant | base | novel | HM | HM minus the default's |\n| --- | ---: | ---: | ---: | ---: |")
    for name, tasks in halves.items():
        if not tasks:
            continue
        base, novel = (
            fmean(fmean(pair[half] for pair in pairs) for pairs in tasks.values()) for half in (0, 1)
        )
        shared = [task for task in hms[FIRST] if task in hms[name]]
        gap, width = paired(*([hms[one][task] for task in shared] for one in (name, FIRST)))
        shown = "" if name == FIRST else f"{gap:+.2f} ± {width:.2f}" if width is not None else f"{gap:+.2f}"
        print(f"| {name} | {base:.2f} | {novel:.2f} | {harmonic_mean(base, novel):.2f} | {shown} |")


if __name__ == "__main__":
    main()
