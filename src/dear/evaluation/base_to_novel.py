"""Base-to-novel generalization: train on the first half of the classes, test on both halves, each among
its own classes.
"""

import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from dear.backbone.clip import Clip
from dear.data.dataset import Dataset
from dear.data.fewshot import ClassSubset, base_novel, draw_few
from dear.evaluation.harmonic import harmonic_mean
from dear.evaluation.metrics import evaluate
from dear.evaluation.records import SCHEMA, environment
from dear.methods.registry import build_method
from dear.methods.settings import DearSettings
from dear.roles.table import RoleTable
from dear.training.loop import train
from dear.training.seeding import generator
from dear.training.settings import TrainSettings
from dear.training.trunks import TrunkCache


def base_to_novel(
    clip: Clip,
    dataset: Dataset,
    method_name: str,
    *,
    seed: int,
    shots: int = 16,
    roles: RoleTable | None = None,
    variant: str | None = None,
    settings: DearSettings | None = None,
    training: TrainSettings | None = None,
    cache: TrunkCache | None = None,
    progress: Callable[[int, dict[str, float]], None] = lambda _epoch, _parts: None,
) -> dict[str, Any]:
    """Run one method on one data set with one seed; returns the run record. The last epoch is tested,
    nothing is chosen on test data.
    """
    training = training or TrainSettings()
    method = build_method(method_name, clip, generator(seed, "parameters"), roles=roles, settings=settings)
    halves = base_novel(len(dataset.classnames))
    base, novel = ([dataset.classnames[label] for label in half] for half in halves)
    method.set_classes(base, dataset.templates)
    start = time.perf_counter()
    epochs: list[dict[str, Any]] = []
    pick = None
    if method.trainable:
        pick, few = draw_few(dataset, shots, seed, halves[0])
        epochs = train(method, few, training, seed=seed, cache=cache, progress=progress)
    trained = time.perf_counter()
    on_base = evaluate(method, ClassSubset(dataset.test, halves[0]), cache=cache)
    method.set_classes(novel, dataset.templates)
    on_novel = evaluate(method, ClassSubset(dataset.test, halves[1]), cache=cache)
    return {
        "schema": SCHEMA,
        "protocol": "base-to-novel",
        "method": method_name,
        "variant": variant,
        "settings": {
            "method": asdict(settings or DearSettings()) if method_name == "dear" else {},
            "train": asdict(training),
        },
        "dataset": {
            "name": dataset.name,
            "title": dataset.title,
            "identity": dataset.identity,
            "classes": [*base, *novel],
        },
        "weights": asdict(clip.identity),
        "roles": None if roles is None or method_name != "dear" else {"source": roles.source},
        "seed": seed,
        "shots": shots,
        "fewshot": None if pick is None else pick.to_json(),
        "train": {"epochs": epochs},
        "results": {
            "base": asdict(on_base),
            "novel": asdict(on_novel),
            "hm": harmonic_mean(on_base.accuracy, on_novel.accuracy),
        },
        "fusion_weights": method.fusion_weights(),
        "trainable_parameters": sum(p.numel() for p in method.trainable),
        "seconds": {"train": trained - start, "test": time.perf_counter() - trained},
        "environment": environment(),
    }
