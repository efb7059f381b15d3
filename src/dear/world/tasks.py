"""Tasks on the Attribute World: rows of tasks.json made class names and images, rendered when loaded.

Classes, their habits and shifts are drawn from the seed of the task. Each half of the classes covers values
and strengths evenly, so that neither half is harder by the draw.
"""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from itertools import product
from pathlib import Path
from typing import Any, Self

import torch
from jaxtyping import Int, UInt8
from torch import Tensor

from dear.errors import DataError, UnknownNameError
from dear.world.factors import FACTOR_NAMES, FACTORS, STYLES
from dear.world.hashing import Stream, slot_number
from dear.world.names import downstream_names as downstream_names
from dear.world.names import packaged_json
from dear.world.names import task_names as task_names
from dear.world.render import render
from dear.world.scene import Scene, draw_scenes, joined
from dear.world.shifts import shifted

SIZE = 48
Class = tuple[int, ...]
ADVERSARIAL = Path(__file__).with_name("adversarial.json")


@dataclass(frozen=True)
class WorldImages:
    """Labeled images, `per_class` for each class, class by class; the number determines everything else.

    Attributes:
        source: the task and split, which also seed the images.
        seed: the task's seed.
        version: of the tasks; a new one means new images.
        factors_of_class: the names of the factors that define a class.
        classes: their values, for each class in label order.
        shift: names and strengths of the shifts, in order of application.
        class_shifts: names of further shifts, with a strength for each class.
        habits: names of other factors, the value that each class prefers, and the share of its images that
            have it.
        selection: the numbers of the images that there are, in order, or None for all.
        labels_in_whole: of a part of a task: the label that each class has in the whole task, whose images
            these are. None if the classes are all of a task's.
    """

    source: str
    seed: int
    version: int
    factors_of_class: tuple[str, ...]
    classes: tuple[tuple[int, ...], ...]
    per_class: int
    shift: tuple[tuple[str, float], ...]
    class_shifts: tuple[tuple[str, tuple[float, ...]], ...] = ()
    habits: tuple[tuple[str, tuple[int, ...], float], ...] = ()
    selection: tuple[int, ...] | None = None
    labels_in_whole: tuple[int, ...] | None = None

    def __len__(self) -> int:
        return len(self._numbers)

    @cached_property
    def _numbers(self) -> Int[Tensor, "item"]:
        if self.selection is not None:
            return torch.tensor(self.selection, dtype=torch.int64)
        return torch.arange(len(self.classes) * self.per_class)

    @property
    def labels(self) -> Int[Tensor, "item"]:
        """The class of each image, from 0."""
        return torch.div(self._numbers, self.per_class, rounding_mode="floor")

    @cached_property
    def factors(self) -> Int[Tensor, "item factor"]:
        """The values of `FACTOR_NAMES` of each image."""
        return self.scenes(torch.arange(len(self))).factors

    @cached_property
    def identity(self) -> str:
        """A stable string that changes with the images: task, split, seed, version, hash of all else."""
        facts: list[object] = [
            self.factors_of_class,
            self.classes,
            self.per_class,
            self.shift,
            self.selection,
        ]
        facts += [looks for looks in (self.class_shifts, self.habits, self.labels_in_whole) if looks]
        digest = slot_number(json.dumps(facts))
        return f"world/{self.source}/seed{self.seed}/v{self.version}/{digest:08x}"

    def scenes(self, indices: Int[Tensor, "batch"]) -> Scene:
        """The scenes of the given items: the class sets its factors, the other factors vary freely but for
        the class's habits.
        """
        numbers = self._numbers[indices]
        seed = (self.seed << 32) + slot_number(self.source)
        labels = torch.div(numbers, self.per_class, rounding_mode="floor")
        drawn = numbers
        if self.labels_in_whole is not None:
            drawn = torch.tensor(self.labels_in_whole)[labels] * self.per_class + numbers % self.per_class
        scene, stream = draw_scenes(seed, drawn), Stream(seed, drawn)
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
        if "color" in self.factors_of_class:  # a sketch has no color, so its label would be undecidable
            sketch = scene.style == STYLES.values.index("sketch")
            scene = scene.with_(style=torch.where(sketch, STYLES.values.index("photo"), scene.style))
        for kind, strength in self.shift:
            scene = shifted(scene, kind, strength, stream)
        return self._shifted_by_class(scene, stream, labels) if self.class_shifts and len(labels) else scene

    def _shifted_by_class(self, scene: Scene, stream: Stream, labels: Int[Tensor, "batch"]) -> Scene:
        order, counts = labels.argsort(stable=True), labels.unique(return_counts=True)[1]
        parts = []
        for rows in order.split(counts.tolist()):
            part, numbers = scene[rows], Stream(stream.seed, stream.index[rows])
            for kind, strengths in self.class_shifts:
                part = shifted(part, kind, strengths[int(labels[rows[0]])], numbers)
            parts.append(part)
        return joined(parts)[order.argsort()]

    def load(self, indices: Int[Tensor, "batch"]) -> UInt8[Tensor, "batch 3 48 48"]:
        """Render the given items."""
        return render(self.scenes(indices), SIZE)

    def keep(self, numbers: Sequence[int]) -> Self:
        """Only the images with the given numbers, in that order."""
        return replace(self, selection=tuple(numbers))

    def part(self, labels: Sequence[int]) -> Self:
        """The images of some classes, which are renumbered in the given order.

        There must be no selection.
        """
        return replace(
            self,
            classes=tuple(self.classes[label] for label in labels),
            class_shifts=tuple(
                (kind, tuple(strengths[label] for label in labels)) for kind, strengths in self.class_shifts
            ),
            habits=tuple(
                (factor, tuple(preferred[label] for label in labels), share)
                for factor, preferred, share in self.habits
            ),
            labels_in_whole=tuple(labels),
        )


@dataclass(frozen=True)
class WorldTask:
    """A classification task. The first ceil(n / 2) classes are the base classes, the others the novel ones.

    ``check`` is a fourth split, for measurements while a task is being set: neither trained nor tested on.
    """

    name: str
    title: str
    classnames: tuple[str, ...]
    template: str
    train: WorldImages
    val: WorldImages
    check: WorldImages
    test: WorldImages


@cache
def load_task(name: str) -> WorldTask:
    """A task by its name; its images are rendered when loaded.

    Raises UnknownNameError for an unknown name, DataError for `source-adversarial` until its images are
    chosen.
    """
    return make_task(_row(name))


def make_task(row: dict[str, Any]) -> WorldTask:
    """A task from a row of tasks.json."""
    classes = classes_of(row)
    train, val, check, test = (_images(row, split) for split in ("train", "val", "check", "test"))
    if "of_each_half" in row:
        labels = _labels_of_part(row["of_each_half"], len(classes))
        classes = [classes[label] for label in labels]
        train, val, check, test = (images.part(labels) for images in (train, val, check, test))
    if row.get("test_from") == "adversarial":
        candidates = adversarial_candidates(row["name"])
        test = candidates.keep(adversarial_numbers(candidates))
    names = tuple(classname(row, values) for values in classes)
    return WorldTask(row["name"], row["title"], names, row["template"], train, val, check, test)


def adversarial_candidates(name: str = "source-adversarial") -> WorldImages:
    """The candidates for adversarial test images: unshifted images of the classes of `source`."""
    return _images(_row(name), "candidates")


def _row(name: str) -> dict[str, Any]:
    """A task's row; a variant (`like`) inherits from the row it names, including the seed of the classes."""
    facts = packaged_json("tasks")
    version = {"tasks": facts["version"], "parts": facts["version"], "sources": facts["source_version"]}
    rows = {row["name"]: {**row, "version": version[role]} for role in version for row in facts[role]}
    if name not in rows:
        raise UnknownNameError("task", name, rows)
    row = rows[name]
    if "part_of" in row:
        return {**_row(row["part_of"]), **row}
    if "like" not in row:
        return {**row, "image_seed": row["seed"]}
    return {**rows[row["like"]], **row, "seed": rows[row["like"]]["seed"], "image_seed": row["seed"]}


def _images(row: dict[str, Any], split: str) -> WorldImages:
    facts = packaged_json("tasks")
    counts = facts["per_class"] | {"candidates": facts["adversarial_candidates"]}
    classes, seed = classes_of(row), row["seed"]
    return WorldImages(
        source=f"{row.get('part_of', row['name'])}/{split}",
        seed=row["image_seed"],
        version=row["version"],
        factors_of_class=tuple(row["factors"]),
        classes=tuple(classes),
        per_class=counts[split],
        shift=tuple((kind, float(strength)) for kind, strength in row["shift"]),
        class_shifts=tuple(
            (kind, shift_strengths(kind, float(strongest), len(classes), seed))
            for kind, strongest in row.get("own", ())
        ),
        habits=tuple(
            (factor, preferred_values(factor, len(classes), seed), float(share))
            for factor, share in row.get("habits", ())
        ),
    )


def _labels_of_part(of_each_half: Sequence[int], classes: int) -> list[int]:
    """The labels that a part's classes have in the whole task: a range of each half."""
    middle = (classes + 1) // 2
    return [half + label for half in (0, middle) for label in range(*of_each_half)]


def adversarial_numbers(candidates: WorldImages, path: Path = ADVERSARIAL) -> list[int]:
    """The images of the adversarial variant of `source`, class by class: zero-shot CLIP misclassifies them.

    Raises DataError if they are not stored yet, or if they were chosen from other candidates.
    """
    command = packaged_json("tasks")["adversarial_command"]
    if not path.is_file():
        raise DataError(
            f"the adversarial images are not chosen yet: {path} is missing. Create it with `{command}`."
        )
    selection = json.loads(path.read_text(encoding="utf-8"))
    if selection["candidates"] != candidates.identity:
        raise DataError(
            f"{path} was chosen from other images ({selection['candidates']}, not {candidates.identity}). "
            f"Create it again with `{command}`."
        )
    numbers = [int(number) for numbers in selection["chosen"] for number in numbers]
    if not numbers or max(numbers) >= len(candidates):
        raise DataError(f"{path} names images that do not exist. Create it again with `{command}`.")
    return numbers


def choose_classes(values: Sequence[Sequence[int]], count: int, seed: int) -> list[Class]:
    """A seeded choice of combinations, one value of each factor, in label order.

    The first ceil(count / 2) are the base classes, the rest the novel ones. Each half covers the values
    evenly, and the novel half only uses values of the base half if there are enough such combinations.
    """
    candidates = _ranked(values, seed)
    if count > len(candidates):
        raise ValueError(f"{count} classes were requested, but there are only {len(candidates)} combinations")
    base = _spread(candidates, (count + 1) // 2)
    base_values = {pair for combination in base for pair in enumerate(combination)}
    unused = [candidate for candidate in candidates if candidate not in base]
    familiar = [candidate for candidate in unused if base_values.issuperset(enumerate(candidate))]
    novel = _spread(familiar, min(count // 2, len(familiar)))
    unfamiliar = [candidate for candidate in unused if candidate not in novel]
    return base + novel + _spread(unfamiliar, count // 2 - len(novel))


def _ranked(values: Sequence[Sequence[int]], seed: int) -> list[Class]:
    """All combinations in a seeded order."""
    candidates = list(product(*values))
    rank = Stream(seed, torch.arange(len(candidates))).bits("classes")[:, 0].tolist()
    return [candidate for _, candidate in sorted(zip(rank, candidates, strict=True))]


def _spread(candidates: Sequence[Class], count: int) -> list[Class]:
    """Pick candidates one by one, always the one whose values were used least so far (ties: the first)."""
    remaining, classes, uses = list(candidates), list[Class](), Counter[tuple[int, int]]()
    for _ in range(count):
        best = min(remaining, key=lambda candidate: sum(uses[pair] ** 2 for pair in enumerate(candidate)))
        remaining.remove(best)
        classes.append(best)
        uses.update(enumerate(best))
    return classes


def classes_of(row: dict[str, Any]) -> list[Class]:
    """The classes of a task row: those it lists as value names under `list`, or a seeded choice.

    `values` gives for each factor the names to choose from, or their number (then a seeded choice); base and
    novel classes share no value of the factors under `apart`.
    """
    names = row["factors"]
    if "apart" in row:
        return _with_values_apart(row)
    if "list" in row:
        return [
            tuple(FACTORS[name].values.index(value) for name, value in zip(names, values, strict=True))
            for values in row["list"]
        ]
    return choose_classes(
        [_pool(name, row["values"][name], row["seed"]) for name in names], row["classes"], row["seed"]
    )


def _with_values_apart(row: dict[str, Any]) -> list[Class]:
    """A seeded choice in which some factors have other values in the novel half than in the base half."""
    seed, count = row["seed"], row["classes"]
    pools = {name: _pool(name, row["values"][name], seed) for name in row["factors"]}
    classes: list[Class] = []
    for half, size in enumerate(((count + 1) // 2, count // 2)):
        values = [_part(pool, half, seed) if name in row["apart"] else pool for name, pool in pools.items()]
        candidates = [candidate for candidate in _ranked(values, seed) if candidate not in classes]
        classes += _spread(candidates, size)
    return classes


def _part(pool: Sequence[int], half: int, seed: int) -> list[int]:
    """The values of the base (0) or the novel half (1)."""
    ranked = [value for (value,) in _ranked([pool], seed)]
    return sorted(ranked[half::2])


def _pool(factor: str, values: int | list[str], seed: int) -> list[int]:
    names = FACTORS[factor].values
    if isinstance(values, list):
        return [names.index(value) for value in values]
    return sorted(_shuffled(len(names), seed, f"pool {factor}")[:values])


def classname(row: dict[str, Any], values: Class) -> str:
    """The class name by the row's pattern; a place is written as its usual phrase, "in the forest"."""
    words = {}
    for name, value in zip(row["factors"], values, strict=True):
        words[name] = FACTORS[name].words[value][0] if name == "place" else FACTORS[name].values[value]
    return str(row["pattern"].format(**words))


def shift_strengths(kind: str, strongest: float, classes: int, seed: int) -> tuple[float, ...]:
    """The strength of a shift for each class: in each half, evenly spaced from 0 to the strongest one."""
    return tuple(
        strongest * step / max(1, len(half) - 1)
        for half in _halves(classes)
        for step in _shuffled(len(half), seed, f"own {kind} {half.start}")
    )


def preferred_values(factor: str, classes: int, seed: int) -> tuple[int, ...]:
    """The value of a factor that each class prefers: in each half, all values before one comes twice."""
    size = len(FACTORS[factor])
    return tuple(
        _shuffled(size, seed, f"habit {factor} {half.start}")[index % size]
        for half in _halves(classes)
        for index in range(len(half))
    )


def _halves(classes: int) -> tuple[range, range]:
    """The labels of the base and of the novel classes."""
    middle = (classes + 1) // 2
    return range(middle), range(middle, classes)


def _shuffled(count: int, seed: int, slot: str) -> list[int]:
    """The numbers below a count in a seeded order."""
    rank = Stream(seed, torch.arange(count)).bits(slot)[:, 0].tolist()
    return sorted(range(count), key=rank.__getitem__)
