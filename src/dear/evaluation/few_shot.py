"""Few-shot learning: train on a few images of every class, test among all classes."""

import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from dear.data.dataset import Dataset
from dear.evaluation.metrics import evaluate
from dear.evaluation.plan import Plan
from dear.evaluation.records import run_record
from dear.evaluation.run_context import Progress, RunContext, adapt, no_progress


def few_shot(
    context: RunContext,
    dataset: Dataset,
    plan: Plan,
    *,
    seed: int,
    shots: int,
    checkpoint: Path | None = None,
    label: str = "run",
    progress: Progress = no_progress,
) -> dict[str, Any]:
    """Run one plan on one data set with one seed and number of shots; returns the run record."""
    adapted = adapt(
        context,
        dataset,
        range(len(dataset.classnames)),
        plan,
        seed=seed,
        shots=shots,
        checkpoint=checkpoint,
        label=label,
        progress=progress,
    )
    started = time.perf_counter()
    results = {
        "all": asdict(
            evaluate(adapted.method, dataset.test, cache=context.cache, precision=adapted.precision)
        )
    }
    return run_record(context, "few-shot", [dataset], dataset.classnames, adapted, results, started)
