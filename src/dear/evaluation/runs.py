"""Many runs in turn: data sets, seeds and methods, each with a record that is kept and not run again."""

import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from dear.backbone.clip import Clip
from dear.data.dataset import Dataset
from dear.evaluation.base_to_novel import base_to_novel
from dear.evaluation.plan import Plan
from dear.evaluation.records import make_folder, read_record, write_json
from dear.methods.settings import DearSettings
from dear.roles.table import RoleTable
from dear.training.settings import TrainSettings
from dear.training.trunks import TrunkCache

CACHE_BYTES = 2 * 2**30


def run_all(
    clip: Clip,
    datasets: Iterable[Dataset],
    plans: Sequence[Plan],
    *,
    seeds: Sequence[int] = (1,),
    shots: int = 16,
    roles: RoleTable | None = None,
    settings: DearSettings | None = None,
    training: TrainSettings | None = None,
    out: Path | None = None,
    progress: Callable[[str, int, dict[str, float]], None] = lambda _run, _epoch, _parts: None,
) -> list[dict[str, Any]]:
    """Base-to-novel for every data set, seed and plan; returns the records in that order.

    With ``out`` each record is written there at once, and a run whose record is already there is read
    instead of run.
    """
    settings, training = settings or DearSettings(), training or TrainSettings()
    if out is not None:
        make_folder(out)
    records = []
    for dataset in datasets:
        cache = TrunkCache(CACHE_BYTES)
        for seed in seeds:
            for plan in plans:
                facts = [asdict(clip.identity), dataset.identity, shots, asdict(training)]
                if plan.method == "dear":
                    facts += [asdict(settings), None if roles is None else roles.to_json()]
                key = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:8]
                name = "-".join(
                    [dataset.name, plan.method, *([plan.mask] if plan.variant else []), f"seed{seed}", key]
                )
                path = None if out is None else out / f"{name}.json"
                if path is not None and path.exists():
                    records.append(read_record(path))
                    progress(name, training.epochs, {})
                    continue
                record = base_to_novel(
                    clip,
                    dataset,
                    plan.method,
                    seed=seed,
                    shots=shots,
                    roles=plan.table(roles, seed),
                    variant=plan.variant,
                    settings=settings,
                    training=training,
                    cache=cache,
                    progress=lambda epoch, parts, name=name: progress(name, epoch, parts),  # type: ignore[misc]
                )
                if path is not None:
                    write_json(path, record)
                records.append(record)
                progress(name, training.epochs, {})
    return records
