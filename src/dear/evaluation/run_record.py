"""What the record of a run holds: one function, from what has been trained and tested."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

from dear.backbone.clip import tensors_hash
from dear.data.dataset import Dataset
from dear.evaluation.environment import environment, peak
from dear.evaluation.records import SCHEMA
from dear.evaluation.resolve import ResolvedRun
from dear.evaluation.trial import Trial, teacher_facts
from dear.methods.optional import WeighsFeatures


def run_record(
    requested: ResolvedRun,
    trial: Trial,
    results: Mapping[str, Any],
    tensors: dict[str, Tensor] | None = None,
) -> dict[str, Any]:
    """The record of a run, from its trial, which is of the candidate that was chosen if it has several; from
    the results of its protocol, and the trained tensors if they are saved beside it.
    """
    run, method = trial.run, trial.method
    teacher, roles, pick = trial.teacher, run.table, trial.pick
    device = run.clip.image.projection.device
    return {
        "schema": SCHEMA,
        "protocol": run.protocol.name,
        "key": requested.key,
        "method": run.setup.method,
        "title": run.setup.declared.title or None,
        "variant": run.setup.variant,
        "source": run.setup.declared.code_hash,
        "settings": {"method": asdict(run.settings), "train": run.used_training},
        "overrides": _overrides(requested, run),
        "published": [*run.authors.rows],
        "dataset": _dataset(run.source),
        "targets": [_dataset(dataset) | _templates(run, dataset) for dataset in run.targets],
        "weights": run.weights,
        "transductive": run.setup.declared.unlabeled,
        "teacher": teacher and teacher_facts(teacher.run) | {"train": {"epochs": teacher.epochs}},
        "roles": None if roles is None else {"source": roles.source, "table": roles.to_json()},
        "seed": run.seed,
        "shots": run.shots,
        "fewshot": None if pick is None else pick.to_json(),
        "train": {"epochs": trial.epochs},
        "selection": {"rule": run.select, "epoch": trial.epoch_tested}
        | ({"tried": trial.tried} if trial.tried else {}),
        "results": dict(results),
        "adapter": tensors if tensors is None else _adapter(trial, tensors),
        "fusion_weights": method.fusion_weights() if isinstance(method, WeighsFeatures) else None,
        "trainable_parameters": sum(p.numel() for p in method.trainable),
        "seconds": {"train": trial.train_seconds, "test": trial.test_seconds},
        "peak_memory": peak(device),
        "environment": environment()
        | {"device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type},
    }


def _overrides(requested: ResolvedRun, run: ResolvedRun) -> dict[str, dict[str, Any]]:
    """The settings that the user set: without those that were chosen."""
    each = requested.setup.each
    chosen = {"method": each.get("settings", {}), "train": each.get("train", {})}
    return {
        part: {name: value for name, value in values.items() if name not in chosen[part]}
        for part, values in run.overrides.items()
    }


def _adapter(trial: Trial, tensors: dict[str, Tensor]) -> dict[str, Any]:
    """What the saved tensors of a run are, and the classes and templates that they belong to."""
    names, templates = trial.source.classnames, trial.source.templates
    return {
        "sha256": tensors_hash(tensors),
        "classes": [names[label] for label in trial.trained_classes],
        "templates": [*templates],
    }


def _dataset(dataset: Dataset) -> dict[str, Any]:
    left_out = {} if dataset.world else {"left_out": dataset.left_out}
    facts = {"name": dataset.name, "title": dataset.title, "identity": dataset.identity}
    return {**facts, "classes": [*dataset.classnames], **left_out}


def _templates(run: ResolvedRun, target: Dataset) -> dict[str, Any]:
    """The templates of the authors for a target, where they are not those of the source."""
    settings, target_settings = asdict(run.settings), asdict(run.settings_for(target))
    changed = {name: value for name, value in target_settings.items() if value != settings[name]}
    return {"settings": changed} if changed else {}
