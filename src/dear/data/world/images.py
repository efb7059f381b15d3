"""The images of one split of a task: identified by number, rendered when loaded."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self

import torch
from jaxtyping import Int, UInt8
from torch import Tensor

from dear.data.world.factors import FACTOR_NAMES, STYLES
from dear.data.world.hashing import Stream, slot_number
from dear.data.world.render import render
from dear.data.world.scene import Scene, draw_scenes, joined
from dear.data.world.shifts import shifted

SIZE = 48


@dataclass(frozen=True)
class WorldImages:
    """Labelled images, `per_class` for each class, class by class; the number determines everything else.

    Attributes:
        source: the task and split, which also seed the images.
        seed: the task's seed.
        version: of the tasks; a new one means new images.
        factors_of_class: the names of the factors that define a class.
        classes: their values, for each class in label order.
        shift: names and strengths of the shifts, in order of application.
        own: names and strengths, one for each class, of the shifts that each class has of its own.
        habits: names of other factors, the value that each class prefers, and the share of its images that
            have it.
        kept: if given, the numbers of the images to keep, in order.
    """

    source: str
    seed: int
    version: int
    factors_of_class: tuple[str, ...]
    classes: tuple[tuple[int, ...], ...]
    per_class: int
    shift: tuple[tuple[str, float], ...]
    own: tuple[tuple[str, tuple[float, ...]], ...] = ()
    habits: tuple[tuple[str, tuple[int, ...], float], ...] = ()
    kept: tuple[int, ...] | None = None

    def __len__(self) -> int:
        return len(self._numbers)

    @cached_property
    def _numbers(self) -> Int[Tensor, "item"]:
        if self.kept is not None:
            return torch.tensor(self.kept, dtype=torch.int64)
        return torch.arange(len(self.classes) * self.per_class)

    @property
    def labels(self) -> Int[Tensor, "item"]:
        """The class of each image, from 0."""
        return torch.div(self._numbers, self.per_class, rounding_mode="floor")

    @cached_property
    def factors(self) -> Int[Tensor, "item 5"]:
        """The values of colour, shape, texture, object and place of each image."""
        return self.scenes(torch.arange(len(self))).factors

    @cached_property
    def identity(self) -> str:
        """A stable string that changes with the images: task, split, seed, version, hash of the rest."""
        facts: list[object] = [self.factors_of_class, self.classes, self.per_class, self.shift, self.kept]
        rest = json.dumps(facts + [looks for looks in (self.own, self.habits) if looks])
        return f"world/{self.source}/seed{self.seed}/v{self.version}/{slot_number(rest):08x}"

    def scenes(self, indices: Int[Tensor, "batch"]) -> Scene:
        """The scenes of the given items: the class sets its factors, the other factors vary freely but for
        the class's habits.
        """
        numbers = self._numbers[indices]
        seed = (self.seed << 32) + slot_number(self.source)
        scene, stream = draw_scenes(seed, numbers), Stream(seed, numbers)
        labels = torch.div(numbers, self.per_class, rounding_mode="floor")
        factors = scene.factors.clone()
        for name, value in zip(
            self.factors_of_class, torch.tensor(self.classes)[labels].unbind(1), strict=True
        ):
            factors[:, FACTOR_NAMES.index(name)] = value
        for name, preferred, share in self.habits:
            column, usual = FACTOR_NAMES.index(name), torch.tensor(preferred)[labels]
            has = stream.chance(f"habit {name}", share)
            factors[:, column] = torch.where(has, usual, factors[:, column])
        scene = scene.with_(factors=factors)
        if "color" in self.factors_of_class:  # a sketch has no colour, so its label would be undecidable
            sketch = scene.style == STYLES.values.index("sketch")
            scene = scene.with_(style=torch.where(sketch, STYLES.values.index("photo"), scene.style))
        for kind, strength in self.shift:
            scene = shifted(scene, kind, strength, stream)
        return self._with_own(scene, stream, labels) if self.own else scene

    def _with_own(self, scene: Scene, stream: Stream, labels: Int[Tensor, "batch"]) -> Scene:
        """The scenes under the shifts of their classes."""
        order, counts = labels.argsort(stable=True), labels.unique(return_counts=True)[1]
        parts = []
        for rows in order.split(counts.tolist()):
            part, own = scene[rows], Stream(stream.seed, stream.index[rows])
            for kind, strengths in self.own:
                part = shifted(part, kind, strengths[int(labels[rows[0]])], own)
            parts.append(part)
        return joined(parts)[order.argsort()]

    def load(self, indices: Int[Tensor, "batch"]) -> UInt8[Tensor, "batch 3 48 48"]:
        """Render the given items."""
        return render(self.scenes(indices), SIZE)

    def keep(self, numbers: Sequence[int]) -> Self:
        """Only the images with the given numbers, in that order."""
        return replace(self, kept=tuple(numbers))
