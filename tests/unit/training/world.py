"""A few random pictures and a small DeAR, for the tests of the loop and of what stands on it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from jaxtyping import Int, UInt8
from torch import Tensor

from dear.backbone.clip import Clip
from dear.data.dataset import Dataset, assemble
from dear.methods.dear import DearSettings
from dear.methods.dear.method import Dear
from dear.progress import TrainingStep
from dear.roles.table import HeadRole, RoleTable
from dear.training.loop import train

CLASSES = ["red circle on the sea", "house", "green tree"]
KINDS: list[Any] = [
    ("core", "color"), ("mixed", None), ("generalization", None), ("core", "object"), ("other-specialized",
    None), ("mixed", None),
]  # fmt: skip


class Noise:
    """Random 8-bit pictures of 23 x 29 pixels, brighter with the label, in memory."""

    def __init__(self, labels: list[int], seed: int = 0) -> None:
        self.labels = torch.tensor(labels)
        self.identity = f"noise {labels} {seed}"
        generator = torch.Generator().manual_seed(seed)
        pictures = torch.randint(0, 100, (len(labels), 3, 23, 29), generator=generator, dtype=torch.uint8)
        self.pictures = pictures + (40 * self.labels.to(torch.uint8)).clamp(max=150)[:, None, None, None]
        self.loads = 0

    def __len__(self) -> int:
        return len(self.labels)

    def load(self, indices: Int[Tensor, "batch"]) -> UInt8[Tensor, "batch 3 height width"]:
        self.loads += 1
        return self.pictures[indices]


def few() -> Noise:
    """Seven pictures of three classes."""
    return Noise([0, 1, 2, 0, 2, 1, 1])


def noise_dataset(name: str = "noise") -> Dataset:
    """Four classes with three pictures to train on and five or seven to test on."""
    train, test = Noise([0, 1, 2, 3] * 3, 1), Noise([0, 1, 2, 3] * 5 + [0, 3] * 2, 2)
    return assemble(name, name.title(), [*CLASSES, "blue square"], ["a photo of a {}"], train, None, test)


def role_table(clip: Clip) -> RoleTable:
    heads = tuple(HeadRole(4 + i // 3, i % 3, role, attribute) for i, (role, attribute) in enumerate(KINDS))
    return RoleTable("by hand", clip.identity, ("color", "object"), heads)


def small_dear(clip: Clip, seed: int = 1, **options: Any) -> Dear:
    settings = DearSettings(**{"first": 8} | options)
    method = Dear(clip, role_table(clip), torch.Generator().manual_seed(seed), settings)
    method.set_classes(CLASSES, ["a photo of a {}"])
    return method


def numbers(history: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The epochs of a training without what the clock tells."""
    return [{name: value for name, value in epoch.items() if name != "seconds"} for epoch in history]


def stop_after(epoch: int) -> Callable[[TrainingStep], None]:
    """Progress that interrupts a training once the state of an epoch is saved."""

    def stop(step: TrainingStep) -> None:
        if step.ends_epoch and step.epoch == epoch:
            raise KeyboardInterrupt

    return stop


def train_until(epoch: int, method: Any, checkpoint: Path, settings: Any, **options: Any) -> None:
    """A training of seven pictures that is interrupted after an epoch."""
    with pytest.raises(KeyboardInterrupt):
        train(method, few(), settings, seed=1, checkpoint=checkpoint, progress=stop_after(epoch), **options)
