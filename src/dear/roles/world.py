"""Scenes of the Attribute World as an image set."""

from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Int, UInt8
from torch import Tensor

from dear.data.world.factors import FACTOR_NAMES
from dear.data.world.render import render
from dear.data.world.scene import draw_scenes

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
