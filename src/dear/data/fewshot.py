"""Subsets of a data set: a few images per class, some classes, some items.

Few-shot images are drawn by one of two rules:

- "coop" is the rule of the CoOp code base, draw for draw, so that results compare with published ones.
- "dear", the default, avoids two of its drawbacks: picks of fewer shots are subsets of picks of more (in CoOp
  they are other images), and the draw does not depend on which class the list begins with. Of the user's own
  data it depends on the contents of images alone, not on their files' names either; benchmarks and the
  Attribute World are drawn by the places of images in their lists, as in earlier records.

With either rule, a class with too few images is an error unless that is allowed; CoOp uses what there is.
"""

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import cycle, islice
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from dear.data.dataset import Dataset, Images, Pictures
from dear.data.settings import Sampling, checked_seed
from dear.errors import DataError
from dear.reading.typed import PositiveInt, check_value
from dear.text import fingerprint, plural

UNEVEN = 3
"""The classes are uneven if the largest has this many times the images of the smallest."""


def pick_shots(labels: Int[Tensor, "item"], shots: int, seed: int) -> Int[Tensor, "pick"]:
    """Draw `shots` items per class without replacement, all of a class that has fewer: indices, class by
    class in label order.

    For the same seed, a pick of fewer shots is a subset of a pick of more: the first items of each class.
    Raises SettingsError for a seed that torch does not accept.
    """
    generator = torch.Generator().manual_seed(checked_seed(seed))
    picked = [torch.empty(0, dtype=torch.int64)]
    for items in items_by_class(labels.cpu()):
        picked.append(items[torch.randperm(len(items), generator=generator)[:shots]])
    return torch.cat(picked)


def pick_by_content(
    labels: Int[Tensor, "item"], names: Sequence[str], shots: int, seed: int
) -> Int[Tensor, "pick"]:
    """As `pick_shots`, by the ``names`` of contents: whatever the order of items and of classes is."""
    draws = [fingerprint(str(checked_seed(seed)), "shots", name) for name in names]
    picked = list[int]()
    for items in items_by_class(labels.cpu()):
        picked += sorted(items.tolist(), key=draws.__getitem__)[:shots]
    return torch.tensor(picked, dtype=torch.int64)


def coop_shots(labels: Int[Tensor, "item"], shots: int, seed: int) -> Int[Tensor, "pick"]:
    """The items that the CoOp code base would train on, for the same list of images and seed.

    Source: Dassl's `DatasetBase.generate_fewshot_dataset` after `random.seed(seed)`: one stream of
    `random.sample`, class by class in the order of their first appearance in the list, before classes are
    split into base and novel ones. (It then draws validation images from the same stream, which changes
    nothing here.) A class with fewer images contributes all of them, without a draw. For ImageNet, CoOp's
    lists follow the order of the file system, so its picks cannot be reproduced elsewhere; here they follow
    the file names.
    """
    stream = random.Random(seed)  # a separate stream, where CoOp uses the global one
    picked: list[int] = []
    by_class = items_by_class(labels)
    for label in dict.fromkeys(labels.tolist()):
        items = by_class[label].tolist()
        picked += stream.sample(items, shots) if len(items) >= shots else items
    return torch.tensor(picked, dtype=torch.int64)


def items_by_class(labels: Int[Tensor, "item"], classes: int = 0) -> tuple[Int[Tensor, "member"], ...]:
    """The items of each class in their order, of as many ``classes`` at least. Labels are sorted once: to
    compare all of them with each class takes classes times items.
    """
    in_order: Int[Tensor, item] = labels.argsort(stable=True)
    return tuple(in_order.split(labels.bincount(minlength=classes).tolist()))


@dataclass(frozen=True)
class Pick:
    """A drawn few-shot set, as stored in a run's record.

    Attributes:
        indices: of the data set's training images.
        sampling: the rule used to draw it.
        files: the image files, if the images come from files.
    """

    seed: int
    shots: int
    indices: tuple[int, ...]
    sampling: Sampling = "dear"
    files: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """A JSON-serializable dict."""
        return {**asdict(self), "indices": [*self.indices], "files": [*self.files]}


def draw_few(
    dataset: Dataset, shots: int, seed: int, classes: Sequence[int] | None = None
) -> tuple[Pick, "Subset"]:
    """Draw a few training images of each class, or of the given classes, by the data set's rule.

    The pick is drawn over all classes first, as in CoOp, so that base, novel and all classes share it. In the
    images, classes are renumbered from 0 in the given order. Raises DataError for a class with fewer images
    than shots, unless the data set allows it, and for a test-only data set; SettingsError as `pick_shots`.
    """
    if not len(dataset.train):
        raise DataError(f"{dataset.name} has no training images: it is test-only.")
    subset = [*(range(len(dataset.classnames)) if classes is None else classes)]
    _require_images(dataset, shots, subset)
    labels, (base, items) = dataset.train.labels, leave_subsets(dataset.train)
    if dataset.sampling == "coop":
        picked: Sequence[int] = coop_shots(labels, shots, seed).tolist()
    elif (digest := getattr(base, "digest", None)) is not None and not dataset.benchmark:  # not of the World
        names = [digest(item).hex() for item in items.tolist()]
        picked = pick_by_content(labels, names, shots, seed).tolist()
    else:
        picked = pick_shots(labels, shots, seed).tolist()
    if dataset.balance:
        picked = balanced(picked, labels, shots)
    members = {*subset}
    indices = tuple(
        i for i, label in zip(picked, labels[[*picked]].tolist(), strict=True) if label in members
    )
    paths = getattr(dataset.train, "paths", None)
    files = tuple(paths[i] for i in indices) if paths else ()
    few = Subset(dataset.train, torch.tensor(indices))
    pick = Pick(seed, shots, indices, dataset.sampling, files)
    return pick, few if classes is None else ClassSubset(few, subset)


def _require_images(dataset: Dataset, shots: int, classes: Sequence[int]) -> None:
    """Raise DataError naming the first of some classes with too few training images, unless allowed. A class
    without any image, also to test on, is one by name alone.
    """
    check_value("shots", shots, PositiveInt)
    if dataset.allow_fewer or dataset.balance:
        return
    images = torch.bincount(dataset.train.labels.cpu(), minlength=len(dataset.classnames)).tolist()
    for label in classes:
        if images[label] < shots:
            more = int((dataset.test.labels == label).sum())
            if not images[label] and not more:
                continue
            beside = f" ({more} more {'is' if more == 1 else 'are'} for testing)" if more else ""
            fewest = min(images[label] for label in classes)
            raise DataError(
                f"class {label} ({dataset.classnames[label]}) has {plural(images[label], 'image')}, fewer "
                f"than {plural(shots, 'shot')}{beside}. "
                f"Give {f'--shots {fewest} or fewer' if fewest else 'it images'}, "
                "--dataset.allow-fewer or --dataset.balance (allow_fewer or balance in a recipe)."
            )


def balanced(indices: Sequence[int], labels: Int[Tensor, "item"], shots: int) -> tuple[int, ...]:
    """A pick in which every class has `shots` items: those of a class with fewer repeat in their order, each
    as often as the others or once more. Classes without items stay without. [ours]
    """
    items_by_class = dict[int, list[int]]()
    for index, label in zip(indices, labels[[*indices]].tolist(), strict=True):
        items_by_class.setdefault(label, []).append(index)
    return tuple(index for items in items_by_class.values() for index in islice(cycle(items), shots))


def uneven(labels: Sequence[int], classnames: Sequence[str]) -> str | None:
    """A warning of classes of very different size (`UNEVEN` times), or None. [ours]"""
    ranked = Counter(labels).most_common()
    if not ranked:
        return None
    (large, most_images), (small, fewest_images) = ranked[0], ranked[-1]
    if most_images < UNEVEN * fewest_images:
        return None
    return (
        f"the classes are uneven, from {fewest_images} ({classnames[small]}) to {most_images} images "
        f"({classnames[large]})"
    )


def base_novel(n_classes: int) -> tuple[range, range]:
    """The base classes, the first ceil(n / 2) in label order, and the novel ones; as in CoOp's code."""
    if n_classes < 2:
        raise DataError(f"base and novel classes need at least 2 classes; there is {n_classes}.")
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

    @property
    def paths(self) -> list[str] | None:
        """The image files, if the images come from files."""
        paths = getattr(self.images, "paths", None)
        return paths and [paths[index] for index in self.indices.tolist()]

    def load(self, indices: Int[Tensor, "batch"]) -> Pictures:
        """The pictures at the given indices of this subset."""
        return self.images.load(self.indices[indices])


def leave_subsets(
    images: Images, indices: Int[Tensor, "item"] | None = None
) -> tuple[Images, Int[Tensor, "item"]]:
    """The set of images that a subset, or a subset of one, is part of, and where its items are there: those
    at ``indices``, or all.
    """
    indices = torch.arange(len(images)) if indices is None else indices
    while isinstance(images, Subset):
        indices, images = images.indices[indices], images.images
    return images, indices


class Unlabeled(Subset):
    """All items of a set of images without their labels: each is -1, which is no class."""

    def __init__(self, images: Images) -> None:
        super().__init__(images, torch.arange(len(images)))
        self.labels = torch.full_like(self.labels, -1)
        self.identity = fingerprint(images.identity, "unlabeled")


class ClassSubset(Subset):
    """All items of some classes, in their original order; classes are renumbered in the given order."""

    def __init__(self, images: Images, classes: Sequence[int]) -> None:
        labels = images.labels
        renumbered = labels.new_full((max([*classes, int(labels.max())]) + 1,), -1)
        renumbered[[*classes]] = torch.arange(len(classes), dtype=labels.dtype, device=labels.device)
        super().__init__(images, (renumbered[labels] >= 0).nonzero().flatten())
        self.labels = renumbered[self.labels]
        self.identity = fingerprint(images.identity, "classes", *map(str, classes))
