"""Base-to-novel generalization: train on the first half of the classes, test on both halves, each among
its own classes.
"""

import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from dear.data.dataset import Dataset
from dear.data.fewshot import ClassSubset, base_novel
from dear.evaluation.bench import Adapted, Bench, Progress, adapt, no_progress
from dear.evaluation.harmonic import harmonic_mean
from dear.evaluation.metrics import evaluate
from dear.evaluation.plan import Plan
from dear.evaluation.records import run_record


def adapt_on_base(
    bench: Bench,
    dataset: Dataset,
    plan: Plan,
    *,
    seed: int,
    shots: int = 16,
    checkpoint: Path | None = None,
    label: str = "run",
    progress: Progress = no_progress,
) -> Adapted:
    """Train a plan's method on a few images of each base class; once, if the bench keeps states."""
    base, _ = base_novel(len(dataset.classnames))
    return adapt(
        bench,
        dataset,
        base,
        plan,
        seed=seed,
        shots=shots,
        checkpoint=checkpoint,
        remember=bench.key("base", [dataset], plan, seed, shots) if bench.keep else None,
        other_classes=True,
        label=label,
        progress=progress,
    )


def base_to_novel(
    bench: Bench,
    dataset: Dataset,
    plan: Plan,
    *,
    seed: int,
    shots: int = 16,
    checkpoint: Path | None = None,
    label: str = "run",
    progress: Progress = no_progress,
) -> dict[str, Any]:
    """Run one plan on one data set with one seed; returns the run record. Nothing is chosen on test data."""
    base, novel = base_novel(len(dataset.classnames))
    adapted = adapt_on_base(
        bench,
        dataset,
        plan,
        seed=seed,
        shots=shots,
        checkpoint=checkpoint,
        label=label,
        progress=progress,
    )
    started = time.perf_counter()
    on_base = evaluate(
        adapted.method, ClassSubset(dataset.test, base), cache=bench.cache, precision=adapted.precision
    )
    adapted.method.set_classes([dataset.classnames[label] for label in novel], dataset.templates)
    on_novel = evaluate(
        adapted.method,
        ClassSubset(dataset.test, novel),
        cache=bench.cache,
        precision=adapted.precision,
        novel=True,
    )
    results = {
        "base": asdict(on_base),
        "novel": asdict(on_novel),
        "hm": harmonic_mean(on_base.accuracy, on_novel.accuracy),
    }
    return run_record(bench, "base-to-novel", [dataset], dataset.classnames, adapted, results, started)
