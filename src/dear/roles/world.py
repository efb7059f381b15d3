"""Evaluating heads on the Attribute World: its scenes as an image set, and a linear probe."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor

from dear.backbone.clip import Clip
from dear.data.world.factors import FACTOR_NAMES, SIZES
from dear.data.world.render import render
from dear.data.world.scene import draw_scenes
from dear.progress import Progress, silent
from dear.roles.decompose import decompose
from dear.roles.ground_truth import explained_variance

SEED = 2_000_003


@dataclass(frozen=True)
class WorldScenes:
    """Scenes of the combinations of pretraining, not part of any task, as an image set.

    Attributes:
        count: Number of images.
        size: Side length in pixels.
        seed: Seed of the scenes; the default is not used by any task or pretraining.
    """

    count: int
    size: int
    seed: int = SEED

    def __len__(self) -> int:
        return self.count

    @cached_property
    def factors(self) -> Int[Tensor, "item 5"]:
        """The value of each factor in each image."""
        return draw_scenes(self.seed, torch.arange(self.count), combinations="pretraining").factors

    @property
    def labels(self) -> Int[Tensor, "item"]:
        """The value of the object, for lack of classes."""
        return self.factors[:, FACTOR_NAMES.index("object")]

    @property
    def identity(self) -> str:
        return f"world/scenes/seed{self.seed}/{self.count}x{self.size}"

    def load(self, indices: Int[Tensor, "batch"]) -> UInt8[Tensor, "batch 3 size size"]:
        """Render the given scenes."""
        return render(draw_scenes(self.seed, indices, combinations="pretraining"), self.size)


def spread(items: int, wanted: int) -> Int[Tensor, "item"]:
    """Indices of ``wanted`` evenly spaced items (or all, if fewer)."""
    return torch.arange(min(wanted, items)) * items // min(wanted, items)


def probe_accuracy(
    values: Float[Tensor, "item embed"], labels: Int[Tensor, "item"], classes: int, *, ridge: float = 1e-2
) -> float:
    """Accuracy (fraction) on the second half of the items of a linear classifier fitted on the first half.

    Least squares onto one-hot labels; ``ridge`` times the mean variance is added to the diagonal.
    """
    half = len(values) // 2
    train, test = values[:half].double(), values[half:].double()
    mean = train.mean(dim=0)
    centred = train - mean
    gram = centred.T @ centred
    gram = gram + ridge * gram.diagonal().mean() * torch.eye(len(gram), dtype=torch.float64)
    targets = torch.nn.functional.one_hot(labels[:half], classes).double()
    weights = torch.linalg.solve(gram, centred.T @ (targets - targets.mean(dim=0)))
    guesses = ((test - mean) @ weights + targets.mean(dim=0)).argmax(dim=1)
    return float((guesses == labels[half:]).double().mean())


@dataclass(frozen=True)
class Reading:
    """The information about the factors in one head's contributions.

    Attributes:
        explained: Share (fraction) of its variance that each factor explains (epsilon squared).
        readings: Accuracy of a linear probe of each factor, rescaled so that 0 is chance and 1 is perfect.
    """

    explained: dict[str, float]
    readings: dict[str, float]


def probe_head(values: Float[Tensor, "item embed"], factors: Int[Tensor, "item 5"]) -> Reading:
    """Explained variance and linear probe of each factor, for one head's contributions."""
    explained, readings = {}, {}
    for column, (name, size) in enumerate(zip(FACTOR_NAMES, SIZES, strict=True)):
        explained[name] = explained_variance(values, factors[:, column], size)
        accuracy = probe_accuracy(values, factors[:, column], size)
        readings[name] = (accuracy - 1 / size) / (1 - 1 / size)
    return Reading(explained, readings)


def probe_heads(
    clip: Clip,
    scenes: WorldScenes,
    layers: Sequence[int],
    *,
    progress: Progress = silent,
) -> dict[tuple[int, int], Reading]:
    """Readings of all heads of some layers; contributions are stored in a temporary file."""
    with TemporaryDirectory() as folder:
        found = decompose(clip, scenes, layers, keep=Path(folder) / "contributions.npy")
        assert found.values is not None
        places = [
            (at, layer, head) for at, layer in enumerate(found.layers) for head in range(clip.image.heads)
        ]
        readings = {}
        for done, (at, layer, head) in enumerate(places, start=1):
            values = torch.from_numpy(np.array(found.values[:, at, head]))
            readings[layer, head] = probe_head(values, scenes.factors)
            progress("heads", done, len(places))
    return readings


def best(readings: dict[str, float], names: Sequence[str] = FACTOR_NAMES) -> str:
    """The factor with the highest probe accuracy."""
    return max(names, key=lambda name: readings[name])
