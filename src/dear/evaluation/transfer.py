"""Cross-dataset transfer and domain generalization: train on all classes of a source, test elsewhere.

The two differ in their targets only (section 3): other data sets with their own classes, or the source's
classes under a shift. They share the training.
"""

import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

from dear.data.dataset import Dataset
from dear.errors import DataError
from dear.evaluation.metrics import evaluate
from dear.evaluation.plan import Plan
from dear.evaluation.records import run_record
from dear.evaluation.run_context import Progress, RunContext, adapt, no_progress


def transfer(
    context: RunContext,
    source: Dataset,
    targets: Sequence[Dataset],
    plan: Plan,
    *,
    protocol: Literal["cross-dataset", "domain-generalization"],
    seed: int,
    shots: int = 16,
    checkpoint: Path | None = None,
    label: str = "run",
    progress: Progress = no_progress,
) -> dict[str, Any]:
    """Run one plan with one seed; returns the run record.

    Both the fused accuracy and that of the class feature alone ("decoupled") are recorded; the paper reads
    the latter in cross-dataset transfer and does not say in domain generalization.
    Raises DataError without a target, or where the source is one of them.
    """
    if not targets:
        raise DataError(f"{protocol} needs at least one data set to test on beside {source.name}.")
    no_target(source, targets)
    adapted = adapt(
        context,
        source,
        range(len(source.classnames)),
        plan,
        seed=seed,
        shots=shots,
        checkpoint=checkpoint,
        other_classes=True,
        remember=context.key("source", [source], plan, seed, shots),
        label=label,
        progress=progress,
    )
    started = time.perf_counter()
    results = {
        "source": asdict(
            evaluate(adapted.method, source.test, cache=context.cache, precision=adapted.precision)
        ),
        "targets": {},
    }
    for target in targets:
        context.cache.begin(target.identity)
        adapted.method.set_classes(target.classnames, target.templates)
        scores = evaluate(
            adapted.method, target.test, cache=context.cache, precision=adapted.precision, novel=True
        )
        results["targets"][target.name] = asdict(scores)
    datasets = [source, *targets]
    return run_record(context, protocol, datasets, source.classnames, adapted, results, started)


def no_target(source: Dataset, targets: Sequence[Dataset]) -> None:
    """Raise DataError where the source is one of the targets."""
    if any(target.identity == source.identity for target in targets):
        raise DataError(f"{source.name} is the source and a target too: leave it out of the targets.")
