"""Bundles, and what was measured of them, without a training."""

from typing import Any

import torch

from dear.adapters.bundle import Bundle
from dear.adapters.facts import BundleScores, TrainingFacts
from dear.adapters.predictor import Predictor
from dear.backbone.clip import Clip
from dear.methods.base import Method
from dear.methods.optional import HasTeacher, UsesAllImages
from dear.methods.registry import METHODS, build_method
from tests.helpers.methods import CLASSES, SETTINGS, TEMPLATE, all_images, make, role_table, small_dear


def bundle_scores(images: int = 7, **fields: Any) -> BundleScores:
    """The scores of a bundle that guesses, but for the given fields."""
    guesses: dict[str, Any] = {
        "data": "by hand", "split": "test", "left_out": 0, "classes": 4, "accuracy": 0.25, "top5": 1.0,
        "zero_shot": 0.25, "chance": 0.25, "log_loss": 1.0, "calibration_error": 0.0, "gained": 0, "lost": 0,
        "confusions": (), "per_class": {},
    }  # fmt: skip
    return BundleScores(**guesses | {"images": images} | fields)


def fitted(name: str, clip: Clip, settings: Any = None) -> tuple[Bundle, Method]:
    """A method with parameters moved away from where they start, as training does, and its bundle."""
    mine = settings or SETTINGS.get(name) or METHODS[name].settings()
    method = build_method(name, clip, torch.Generator().manual_seed(1), roles=role_table(clip), settings=mine)
    if isinstance(method, HasTeacher):
        method.set_teacher(make(METHODS[name].teacher or "", clip))
    method.set_classes(CLASSES, TEMPLATE)
    if isinstance(method, UsesAllImages):
        method.before_training(all_images(method))
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in method.trainable:
            parameter += 0.1 * torch.randn(parameter.shape, generator=generator)
    bundle = Bundle(
        method=name,
        settings=mine,
        model="small",
        pretrained="random",
        weights=clip.identity,
        roles=role_table(clip) if METHODS[name].roles else None,
        classes=tuple(CLASSES),
        templates=tuple(TEMPLATE),
        tensors={k: v.detach().clone() for k, v in method.stored_tensors().items()},
        temperature=1.7,
        scores=bundle_scores(accuracy=4 / 7),
        training=TrainingFacts(data="by hand", shots=3),
    )
    return bundle, method


def small_predictor(clip: Clip) -> Predictor:
    """A small DeAR with parameters moved away from where they start."""
    method = small_dear(clip)
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in method.trainable:
            parameter += 0.1 * torch.randn(parameter.shape, generator=generator)
    bundle = Bundle(
        method="dear", settings=method.settings, model="small", pretrained=None, weights=clip.identity,
        roles=method.roles, classes=tuple(CLASSES), templates=("a photo of a {}",),
        tensors={name: one.detach().clone() for name, one in method.stored_tensors().items()},
    )  # fmt: skip
    return Predictor(bundle, clip=clip)
