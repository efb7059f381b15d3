"""DeAR's masks on the Attribute World: accuracy, fusion weights, and which feature finds which factor.

    python benchmarks/attributes.py --out runs/attributes.jsonl --seeds 1,2,3
    python benchmarks/attributes.py --out runs/attributes.jsonl --table

One training serves all three. Runs that are already in the file are not repeated.
"""

import argparse
import json
import math
import time
from collections.abc import Callable, Iterable
from itertools import product
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import torch

from dear.backbone.load import load_clip
from dear.data.loading import load_dataset
from dear.data.world.factors import FACTOR_NAMES, SIZES
from dear.data.world.tasks import load_task
from dear.evaluation.plan import Plan
from dear.evaluation.protocols.base_to_novel import BaseToNovel
from dear.evaluation.recipe import data_names
from dear.evaluation.run_context import CACHE_BYTES, RunContext
from dear.evaluation.trial import Trial
from dear.methods.dear import DearSettings
from dear.retrieval.neighbours import all_features, chance_by_factor, nearest, precision_by_factor
from dear.roles.packaged import role_table
from dear.training.settings import TrainOptions
from dear.training.trunks import TrunkCache

# By name: the plan of the run, and the training options that differ from the published ones.
VARIANTS: dict[str, tuple[Plan, TrainOptions]] = {
    "zero-shot": (Plan("zero-shot"), TrainOptions()),
    "exclusive": (Plan("dear"), TrainOptions()),
    "eq9": (Plan("dear", settings=DearSettings(core_mask="eq9")), TrainOptions()),
    "isolated": (Plan("dear", role_variant="all-isolated"), TrainOptions()),
    "mixed": (Plan("dear", role_variant="all-mixed"), TrainOptions()),
    "shuffled": (Plan("dear", role_variant="shuffled"), TrainOptions()),
    "beta 0.5": (Plan("dear", settings=DearSettings(beta=0.5)), TrainOptions()),
    "beta 0.1": (Plan("dear", settings=DearSettings(beta=0.1)), TrainOptions()),
    "fusion rate 30": (Plan("dear", settings=DearSettings(fusion_rate=30.0)), TrainOptions()),
    "batch 4": (Plan("dear"), TrainOptions(batch=4)),
}
T_95 = {2: 12.706, 3: 4.303, 4: 3.182, 8: 2.365, 11: 2.228, 12: 2.201}
"""97.5% quantiles of Student's t by the number of paired tasks."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="file of the runs, one JSON object per line")
    parser.add_argument("--tasks", default="world", help="tasks, or world for all twelve")
    parser.add_argument("--seeds", default="1")
    parser.add_argument("--variants", default="zero-shot,exclusive,eq9,isolated,mixed,shuffled")
    parser.add_argument("--pretrained", help="folder of tools.pretrain; the embedded weights if not given")
    parser.add_argument("--roles", help="role table: a file, discovered or ground-truth")
    parser.add_argument("--table", action="store_true", help="print the tables of the file; run nothing")
    given = parser.parse_args()
    if given.table:
        tables([json.loads(line) for line in given.out.read_text().splitlines()])
        return
    torch.set_num_threads(1)
    clip = load_clip("tiny", given.pretrained)
    roles = role_table(clip, Path(given.roles) if given.roles else None)
    given.out.parent.mkdir(parents=True, exist_ok=True)
    lines = given.out.read_text().splitlines() if given.out.exists() else []
    done = {tuple(json.loads(line)["run"]) for line in lines}
    for seed, task in product(map(int, given.seeds.split(",")), data_names(given.tasks.split(","))):
        cache = TrunkCache(CACHE_BYTES)  # the variants see the same batches
        for name in given.variants.split(","):
            if (name, task, seed) not in done:
                plan, options = VARIANTS[name]
                found = measure(RunContext(clip, roles, options, cache=cache), task, plan, seed)
                with given.out.open("a") as file:
                    file.write(json.dumps({"run": (name, task, seed), **found}) + "\n")


def measure(context: RunContext, task: str, plan: Plan, seed: int) -> dict[str, Any]:
    """Accuracies on both halves, fusion weights, and precision at 10 by feature and factor over all test
    images.
    """
    start = time.perf_counter()
    dataset = load_dataset(task)
    trial = Trial(context, context.resolve(BaseToNovel(), [dataset], plan, seed=seed))
    results = trial.run.protocol.run(trial)
    found = {part: results[part]["accuracy"] for part in ("base", "novel")}
    found |= {f"{part} decoupled": results[part]["decoupled"] for part in ("base", "novel")}
    found["fusion"] = trial.method.fusion_weights()
    if plan.method == "dear":
        method = trial.method
        images = load_task(task).test
        features = all_features(method, images)
        found["precision"] = {
            name: precision_by_factor(nearest(each, 10), images.factors, FACTOR_NAMES)
            for name, each in zip(method.features, features, strict=True)
        }
        found["chance"] = chance_by_factor(images.factors, FACTOR_NAMES)
    return found | {"seconds": time.perf_counter() - start}


def tables(runs: Iterable[dict[str, Any]]) -> None:
    """Print the tables, in Markdown and percent."""
    by_variant: dict[str, list[dict[str, Any]]] = {}
    for run in runs:
        by_variant.setdefault(run["run"][0], []).append(run)
    print(
        "| | base | novel | HM | HM, class feature alone | runs |\n| --- | ---: | ---: | ---: | ---: | ---: |"
    )
    for name, some in by_variant.items():
        by_seed = [
            harmonic([r for r in some if r["run"][2] == s]) for s in sorted({r["run"][2] for r in some})
        ]
        spread = f" ± {stdev(by_seed):.2f}" if len(by_seed) > 1 and name != "zero-shot" else ""
        base, novel = (100 * fmean(r[part] for r in some) for part in ("base", "novel"))
        print(
            f"| {name} | {base:.2f} | {novel:.2f} | {fmean(by_seed):.2f}{spread} "
            f"| {harmonic(some, ' decoupled'):.2f} | {len(some)} |"
        )
    for reference in ("exclusive",):
        if reference not in by_variant:
            continue
        print(f"\nHM of {reference} minus that of others, mean over tasks, 95% t interval:")
        for name, some in by_variant.items():
            if name != reference:
                print(f"- {name}: {paired(by_variant[reference], some)}")
    for name, some in by_variant.items():
        if "precision" in some[0]:
            print(f"\nRetrieval, {name} ({len(some)} runs)\n")
            retrieval(some)
            by_feature = {f: fmean(r["fusion"][f] for r in some) for f in some[0]["fusion"]}
            print("\nfusion weights: " + ", ".join(f"{f} {w:.3f}" for f, w in by_feature.items()))
            fusion_relevance(some)


def harmonic(runs: list[dict[str, Any]], suffix: str = "") -> float:
    """HM of the averages, percent."""
    base, novel = (fmean(run[part + suffix] for run in runs) for part in ("base", "novel"))
    return 100 * 2 * base * novel / (base + novel)


def paired(one: list[dict[str, Any]], other: list[dict[str, Any]]) -> str:
    """Mean difference of HM over the tasks and seeds common to both, with the interval over tasks."""
    shared = {tuple(r["run"][1:]) for r in one} & {tuple(r["run"][1:]) for r in other}
    kept = [[r for r in some if tuple(r["run"][1:]) in shared] for some in (one, other)]
    gaps = []
    for task in sorted({task for task, _ in shared}):
        a, b = (fmean(harmonic([r]) for r in some if r["run"][1] == task) for some in kept)
        gaps.append(a - b)
    if len(gaps) not in T_95:
        return f"{fmean(gaps):+.2f} ({len(gaps)} tasks)"
    return (
        f"{fmean(gaps):+.2f} ± {T_95[len(gaps)] * stdev(gaps) / math.sqrt(len(gaps)):.2f} ({len(gaps)} tasks)"
    )


def fusion_relevance(runs: list[dict[str, Any]]) -> None:
    """Print whether the fusion weights identify the factors that separate a task's classes."""
    by_relevance: dict[bool, list[float]] = {True: [], False: []}
    first = chance = 0.0
    for run in runs:
        relevant = set(load_task(run["run"][1]).train.factors_of_class)
        weights = {name: run["fusion"][name] for name in FACTOR_NAMES}
        for name, weight in weights.items():
            by_relevance[name in relevant].append(weight)
        first += max(weights, key=lambda name: weights[name]) in relevant
        chance += len(relevant) / len(weights)
    yes, no = (fmean(by_relevance[key]) for key in (True, False))
    print(
        f"an attribute's mean weight is {yes:.3f} where it separates a task's classes, {no:.3f} elsewhere; "
        f"the heaviest attribute separates them in {first:.0f} of {len(runs)} runs (by chance {chance:.1f})"
    )


def retrieval(runs: list[dict[str, Any]]) -> None:
    """Print precision at 10, features by factors, over the tasks in which the factor varies."""
    print("| feature | " + " | ".join(FACTOR_NAMES) + " |\n| --- |" + " ---: |" * len(SIZES))
    rows: dict[str, Callable[[dict[str, Any]], dict[str, float]]] = {
        f: (lambda run, f=f: run["precision"][f]) for f in runs[0]["precision"]
    }
    rows["(chance)"] = lambda run: run["chance"]
    for name, read in rows.items():
        values = [fmean(read(run)[f] for run in runs if run["chance"][f] < 1) for f in FACTOR_NAMES]
        print(f"| {name} | " + " | ".join(f"{100 * value:.1f}" for value in values) + " |")


if __name__ == "__main__":
    main()
