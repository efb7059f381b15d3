"""Run records: one JSON object a run, written whole or not at all (docs/reference/records.md)."""

import hashlib
import os
import platform
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from dear import __version__
from dear.data.dataset import Dataset
from dear.errors import DataError, OutputError
from dear.evaluation.memory import peak
from dear.evaluation.plan import Protocol
from dear.evaluation.resolve import settings_of, training_of
from dear.evaluation.run_context import Adapted, RunContext
from dear.evaluation.schema import SCHEMA
from dear.evaluation.validate import check_record
from dear.reading.files import ReadingError
from dear.reading.plain import read_json
from dear.reading.typed import shown, typed

PACKAGE = Path(__file__).parents[1]


def run_record(
    context: RunContext,
    protocol: Protocol,
    datasets: Sequence[Dataset],
    classes: Sequence[str],
    adapted: Adapted,
    results: Mapping[str, Any],
    started: float,
) -> dict[str, Any]:
    """The record of a run: trained on the first data set, tested on it or on the others; ``started`` is the
    clock (time.perf_counter) at the start of testing.
    """
    source, plan, roles = datasets[0], adapted.plan, adapted.roles
    method = adapted.method
    return {
        "schema": SCHEMA,
        "protocol": protocol,
        "key": context.key(protocol, datasets, plan, adapted.seed, adapted.shots),
        "method": plan.method,
        "variant": plan.variant,
        "settings": {
            "method": asdict(settings_of(plan, source.name)),
            "train": asdict(training_of(plan, context.training)),
        },
        "dataset": _dataset(source) | {"classes": [*classes]},
        "targets": [_dataset(dataset) for dataset in datasets[1:]],
        "weights": asdict(context.clip.identity),
        "roles": None if roles is None else {"source": roles.source, "table": roles.to_json()},
        "seed": adapted.seed,
        "shots": adapted.shots,
        "fewshot": None if adapted.pick is None else adapted.pick.to_json(),
        "train": {"epochs": adapted.epochs},
        "selection": {"rule": context.select, "epoch": adapted.tested},
        "results": dict(results),
        "fusion_weights": method.fusion_weights(),
        "trainable_parameters": sum(p.numel() for p in method.trainable),
        "seconds": {
            "train": sum(epoch["seconds"] for epoch in adapted.epochs),
            "test": time.perf_counter() - started,
        },
        "peak_memory": peak(),
        "environment": environment() | {"device": _device(context)},
    }


def _dataset(dataset: Dataset) -> dict[str, str]:
    return {"name": dataset.name, "title": dataset.title, "identity": dataset.identity}


def _device(context: RunContext) -> str:
    device = context.clip.image.projection.device
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    processes = 1 if context.fabric is None else context.fabric.world_size
    return name if processes == 1 else f"{processes} x {name}"


@cache
def code_version() -> str:
    """12 digits that change with the package's code: SHA-256 over its Python files, in order."""
    digest = hashlib.sha256()
    for path in sorted(PACKAGE.rglob("*.py")):
        digest.update(path.relative_to(PACKAGE).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:12]


def environment() -> dict[str, str | int]:
    """What the numbers were computed with."""
    return {
        "dear": __version__,
        "code": code_version(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "open_clip": version("open_clip_torch"),
        "machine": platform.machine(),
        "threads": torch.get_num_threads(),
    }


def make_folder(folder: Path) -> None:
    """Make the folder of records before anything is computed for it. Raises OutputError."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"cannot write to {folder}: {error}. Choose another place with --out.") from error
    if not os.access(folder, os.W_OK | os.X_OK):
        raise OutputError(f"cannot write to {folder}: no permission. Choose another place with --out.")


def read_record(path: Path) -> dict[str, Any]:
    """Read a record. Raises DataError for a damaged file or another schema."""
    try:
        told = typed(read_json(path), dict[str, Any], path)
    except ReadingError as error:
        raise DataError(f"{path} is not a run record: {error.reason}. Remove it and run it again.") from error
    if told.get("schema") != SCHEMA:
        raise DataError(
            f"{path} is of record schema {shown(told.get('schema'))}, this version reads {SCHEMA}. "
            "Remove it and run it again."
        )
    try:
        check_record(told)
    except DataError as error:
        raise DataError(f"{path} is not a run record: {error}. Remove it and run it again.") from error
    return told
