"""Base-to-novel generalization: train on the first half of the classes, test on both halves, each among
its own classes.
"""

import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from dear.data.dataset import Dataset
from dear.data.fewshot import ClassSubset, base_novel
from dear.evaluation.harmonic import harmonic_mean
from dear.evaluation.metrics import evaluate
from dear.evaluation.plan import Plan
from dear.evaluation.records import run_record
from dear.evaluation.run_context import Adapted, Progress, RunContext, adapt, no_progress


def adapt_on_base(
    context: RunContext,
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
        context,
        dataset,
        base,
        plan,
        seed=seed,
        shots=shots,
        checkpoint=checkpoint,
        remember=context.key("base", [dataset], plan, seed, shots) if context.keep else None,
        other_classes=True,
        label=label,
        progress=progress,
    )


def base_to_novel(
    context: RunContext,
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
        context,
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
        adapted.method, ClassSubset(dataset.test, base), cache=context.cache, precision=adapted.precision
    )
    adapted.method.set_classes([dataset.classnames[label] for label in novel], dataset.templates)
    on_novel = evaluate(
        adapted.method,
        ClassSubset(dataset.test, novel),
        cache=context.cache,
        precision=adapted.precision,
        novel=True,
    )
    results = {
        "base": asdict(on_base),
        "novel": asdict(on_novel),
        "hm": harmonic_mean(on_base.accuracy, on_novel.accuracy),
    }
    return run_record(context, "base-to-novel", [dataset], dataset.classnames, adapted, results, started)
