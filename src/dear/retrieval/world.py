"""Retrieval on the Attribute World, where every image's factors are known: which feature finds which
factor?
"""

from typing import Any

from dear.backbone.clip import Clip
from dear.data.dataset import load_dataset
from dear.data.fewshot import Subset, pick_shots
from dear.data.world.factors import FACTORS
from dear.methods.registry import build_method
from dear.retrieval.panels import retrieval_panels
from dear.roles.table import RoleTable
from dear.training.loop import train
from dear.training.seeding import generator
from dear.training.settings import TrainSettings

QUERIES = (3, 170, 431)


def world_retrieval(
    clip: Clip,
    roles: RoleTable,
    *,
    task: str,
    seed: int,
    shots: int = 16,
    training: TrainSettings | None = None,
) -> dict[str, Any]:
    """Train DeAR on all classes of a task, then retrieve among its test images by each feature."""
    dataset = load_dataset(task)
    method = build_method("dear", clip, generator(seed, "parameters"), roles=roles)
    method.set_classes(dataset.classnames, dataset.templates)
    few = Subset(dataset.train, pick_shots(dataset.train.labels, shots, seed))
    train(method, few, training or TrainSettings(), seed=seed)
    values = {name: factor.values for name, factor in FACTORS.items()}
    return retrieval_panels(method, dataset.test, dataset.test.factors, values, queries=QUERIES)  # type: ignore[attr-defined]
