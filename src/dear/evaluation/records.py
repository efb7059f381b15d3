"""Run records: one JSON object per run, written atomically (docs/reference/records.md)."""

import hashlib
import os
import platform
from collections.abc import Mapping
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
from dear.evaluation.resolve import ResolvedRun
from dear.evaluation.run_context import RunContext
from dear.evaluation.schema import SCHEMA
from dear.evaluation.trial import Trial
from dear.evaluation.validate import check_record
from dear.reading.files import ReadingError
from dear.reading.plain import read_json
from dear.reading.typed import shown, typed

PACKAGE = Path(__file__).parents[1]


def run_record(trial: Trial, results: Mapping[str, Any]) -> dict[str, Any]:
    """The record of a run, from its trial and the results of its protocol."""
    run, method = trial.run, trial.method
    return {
        "schema": SCHEMA,
        "protocol": run.protocol.name,
        "key": run.key,
        "method": run.plan.method,
        "variant": run.plan.variant,
        "settings": {"method": asdict(run.settings), "train": asdict(run.training)},
        "published": [*run.published],
        "tuned_on_targets": run.tuned_on_targets,
        "dataset": _dataset(run.source) | {"classes": [*run.source.classnames]},
        "targets": [_dataset(dataset) for dataset in run.targets],
        "weights": dict(run.weights),
        "transductive": run.plan.unlabelled,
        "teacher": trial.teacher
        and teacher_facts(trial.teacher.run) | {"train": {"epochs": trial.teacher.epochs}},
        "roles": None if run.roles is None else {"source": run.roles.source, "table": run.roles.to_json()},
        "seed": run.seed,
        "shots": run.shots,
        "fewshot": None if trial.pick is None else trial.pick.to_json(),
        "train": {"epochs": trial.epochs},
        "selection": {"rule": run.select, "epoch": trial.epoch_tested},
        "results": dict(results),
        "mistakes": trial.mistakes,
        "fusion_weights": method.fusion_weights(),
        "trainable_parameters": sum(p.numel() for p in method.trainable),
        "seconds": {
            "train": sum(epoch["seconds"] for epoch in trial.all_epochs),
            "test": trial.test_seconds,
        },
        "peak_memory": peak(),
        "environment": environment() | {"device": _device(trial.context)},
    }


def teacher_facts(run: ResolvedRun) -> dict[str, Any]:
    """How a method's teacher was trained, for a record or a bundle."""
    return {
        "method": run.plan.method,
        "settings": {"method": asdict(run.settings), "train": asdict(run.training)},
        "weights": dict(run.weights),
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
    """12 hexadecimal digits that change with the package's code: SHA-256 over its Python files, in order."""
    digest = hashlib.sha256()
    for path in sorted(PACKAGE.rglob("*.py")):
        digest.update(path.relative_to(PACKAGE).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:12]


def environment() -> dict[str, str | int]:
    """The software and machine that computed the results."""
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
    """Create the folder of records before any computation. Raises OutputError."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"cannot write to {folder}: {error}. Choose another place with --out.") from error
    if not os.access(folder, os.W_OK | os.X_OK):
        raise OutputError(f"cannot write to {folder}: no permission. Choose another place with --out.")


def read_record(path: Path) -> dict[str, Any]:
    """Read a record. Raises DataError for a damaged file or another schema."""
    try:
        record = typed(read_json(path), dict[str, Any], path)
    except ReadingError as error:
        raise DataError(f"{path} is not a run record: {error.reason}. Remove it and run it again.") from error
    if record.get("schema") != SCHEMA:
        raise DataError(
            f"{path} has record schema {shown(record.get('schema'))}, this version reads {SCHEMA}. "
            "Remove it and run it again."
        )
    try:
        check_record(record)
    except DataError as error:
        raise DataError(f"{path} is not a run record: {error}. Remove it and run it again.") from error
    return record
