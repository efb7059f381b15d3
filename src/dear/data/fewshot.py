"""Parts of a data set: a few images a class, some classes, some items."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from dear.data.dataset import Images, Pictures, fingerprint
from dear.errors import DataError


def pick_shots(
    labels: Int[Tensor, "item"],
    shots: int,
    seed: int,
    *,
    allow_fewer: bool = False,
    classnames: Sequence[str] | None = None,
) -> Int[Tensor, "pick"]:
    """Draw `shots` items of each class without replacement: indices, class after class in label order.

    With one seed, a pick of fewer shots is part of a pick of more: the first of each class.
    The classes are those of `classnames`, or else 0 to the highest label.
    Errors: DataError that names the first class with fewer items than `shots` (unless `allow_fewer`).
    """
    if shots < 1:
        raise DataError(f"{shots} shots a class: at least 1 is needed.")
    generator = torch.Generator().manual_seed(seed)
    picked = [torch.empty(0, dtype=torch.int64)]
    for label in range(len(classnames) if classnames else int(labels.max()) + 1):
        items = (labels == label).nonzero().flatten().cpu()
        if len(items) < shots and not allow_fewer:
            named = f" ({classnames[label]})" if classnames else ""
            raise DataError(
                f"class {label}{named} has {len(items)} images, fewer than {shots} shots. "
                "Ask for fewer shots, or allow classes with fewer."
            )
        picked.append(items[torch.randperm(len(items), generator=generator)[:shots]])
    return torch.cat(picked)


@dataclass(frozen=True)
class Pick:
    """A drawn few-shot set, as it stands in a run's record."""

    seed: int
    shots: int
    indices: tuple[int, ...]

    @classmethod
    def draw(
        cls,
        labels: Int[Tensor, "item"],
        shots: int,
        seed: int,
        *,
        allow_fewer: bool = False,
        classnames: Sequence[str] | None = None,
    ) -> "Pick":
        """What `pick_shots` draws, with what it was drawn from."""
        indices = pick_shots(labels, shots, seed, allow_fewer=allow_fewer, classnames=classnames)
        return cls(seed, shots, tuple(indices.tolist()))

    def to_json(self) -> dict[str, Any]:
        """Plain values for `json.dumps`."""
        return {**asdict(self), "indices": [*self.indices]}

    @classmethod
    def from_json(cls, record: dict[str, Any]) -> "Pick":
        """The inverse of `to_json`."""
        return cls(record["seed"], record["shots"], tuple(record["indices"]))


def base_novel(n_classes: int) -> tuple[range, range]:
    """The base classes, the first ceil(n / 2) in label order, and the novel ones, the rest (section 3)."""
    if n_classes < 2:
        raise DataError(f"base and novel classes need at least 2 classes, and there is {n_classes}.")
    n_base = (n_classes + 1) // 2
    return range(n_base), range(n_base, n_classes)


class Subset:
    """Some items of a set of images, in the given order."""

    def __init__(self, images: Images, indices: Int[Tensor, "item"]) -> None:
        self.images = images
        self.indices = indices.to(images.labels.device)
        self.labels = images.labels[self.indices]
        self.identity = fingerprint(images.identity, "items", *map(str, indices.tolist()))

    def __len__(self) -> int:
        return len(self.indices)

    def load(self, indices: Int[Tensor, "batch"]) -> Pictures:
        """The pictures at the given indices of this subset."""
        return self.images.load(self.indices[indices])


class ClassSubset(Subset):
    """All items of some classes, in their own order; the classes count anew from 0, in the given order."""

    def __init__(self, images: Images, classes: Sequence[int]) -> None:
        old = images.labels
        table = torch.full((max([*classes, int(old.max())]) + 1,), -1, dtype=old.dtype, device=old.device)
        table[[*classes]] = torch.arange(len(classes), dtype=old.dtype, device=old.device)
        super().__init__(images, (table[old] >= 0).nonzero().flatten())
        self.labels = table[self.labels]
        self.identity = fingerprint(images.identity, "classes", *map(str, classes))
