"""Near-duplicates: pictures that are far more alike than others of the same data are.

How alike two different pictures are depends on the data: photographs share nothing, digits and pages much,
and parts under one camera nearly everything. So no distance alone makes two pictures the same. A cluster of
alike pictures is one of near-duplicates if the nearest other picture is farther away than they are by a
factor that is rare by chance in data like these: where pictures lie in D dimensions, the second neighbor is
by a factor of R farther than the first for R ** -D of them (Facco et al., 2017, "Estimating the intrinsic
dimension of datasets by a minimal neighborhood information"). A cluster that is most of the data has nothing
to stand out from, and the ends of a chain of likenesses are not alike: inside of such a cluster, pictures are
compared with the rest of it.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from dear.data.images.thumbnails import (
    ROUNDING,
    Thumbnails,
    are_flat,
    coarse_features,
    picture_distances,
)

ALIKE = 0.35
"""The distance (`picture_distances`) up to which pictures may be near-duplicates. Of photographs that were
saved again, resized, brightened or cropped by 2% a side 99% have at most 0.3."""
COMPACT = 0.45
"""The mean distance up to which more than two pictures are a burst, not a chain whose ends are not alike."""
NEIGHBORS = 8
"""The others that each picture is compared with: those that rank first by coarse features."""
BY_CHANCE = 0.2
"""The clusters that are expected to be taken for near-duplicates by chance in a data set without any."""
LEAST_RATIO, LEAST_INSIDE = 2.0, 1.2
"""The factors that are asked for at least, of clusters in all data and inside of a dense part of it."""
FEWEST, UNSURE = 5, 2.5
"""The neighborhoods from which a dimension is estimated, and the factor that is asked for with fewer."""
SCENE, FEWEST_OF_SCENE = 0.25, 8
"""The share of all images, and their number, beyond which a cluster in several classes is no burst."""
FEW = 4
"""Pictures up to which a cluster inside of a dense one may be most of it or of a class, and need not be as
far from the rest as `UNSURE` says."""
ONE_SCENE = 0.97
"""The mean correlation from which the images of a dense part are said to show one scene."""
LOOKED_AT = 3
"""Ratios of distances of neighbors by which a dimension is estimated."""
MOST_PAIRS = 64
"""Pairs of a cluster that are measured to see whether it is a chain."""
ROWS_AT_ONCE = 256
MOST_COMPARED = 50_000
"""With more images, near-duplicates are not looked for."""


@dataclass(frozen=True)
class NearDuplicates:
    """What was found among some images.

    Attributes:
        groups: Indices of images that are near-duplicates of each other.
        scene: How many images show one scene in several classes; 0 if none do.
    """

    groups: Sequence[Sequence[int]]
    scene: int


@dataclass(frozen=True)
class Cluster:
    """Pictures that are linked by distances of at most ``link``: of a single one the ``item``, else two
    ``parts``.
    """

    link: float
    item: int = -1
    parts: tuple["Cluster", ...] = ()

    def items(self) -> list[int]:
        """The pictures in it."""
        found, stack = list[int](), [self]
        while stack:
            cluster = stack.pop()
            stack += cluster.parts
            if not cluster.parts:
                found.append(cluster.item)
        return sorted(found)


def find_near_duplicates(thumbnails: Thumbnails, labels: Int[Tensor, "item"]) -> NearDuplicates:
    """The near-duplicates among images, whatever their order. Memory grows with the number of images, not of
    pairs. By ``labels`` a scene, which is in several classes, is told from a burst.
    """
    copies = dict[bytes, list[int]]()
    for item in (~are_flat(thumbnails)).nonzero().flatten().tolist():
        copies.setdefault(blake2b(thumbnails[item].numpy().tobytes()).digest(), []).append(item)
    members = [copies[content] for content in sorted(copies)]
    if len(members) > 1:
        images = _Images(thumbnails[[inside[0] for inside in members]], members, labels)
        clusters, scene = images.find()
    else:
        clusters, scene = [], 0
    rest = {*range(len(members))}.difference(*clusters)
    groups = [[item for picture in cluster for item in members[picture]] for cluster in clusters]
    groups += [members[picture] for picture in rest if len(members[picture]) > 1]
    return NearDuplicates(sorted(sorted(group) for group in groups), scene)


class _Images:
    """The distinct pictures of some images, ``members`` of each, and its nearest others."""

    def __init__(self, pictures: Thumbnails, members: Sequence[Sequence[int]], labels: Tensor) -> None:
        self.pictures, self.members = pictures, members
        self.labels, self.count = labels, sum(map(len, members))
        self.features = coarse_features(pictures)
        everything = np.arange(len(pictures))
        self.others = self._rank(everything, min(NEIGHBORS, len(pictures) - 1))
        self.distances = self._measure(everything, self.others)
        self._make_symmetric()

    def find(self) -> tuple[list[list[int]], int]:
        """The clusters that stand out, as pictures, and how many images show one scene."""
        clusters, nearest, distances = self._link_all()
        accepted, scene = list[list[int]](), 0
        ratio = required_ratio(estimate_dimension(distances), len(clusters), LEAST_RATIO)
        for cluster, outside in zip(clusters, nearest.tolist(), strict=True):
            if not cluster.parts:
                continue
            if self._stands_out(cluster, outside, ratio):
                accepted.append(cluster.items())
            else:
                accepted += self._look_inside(cluster)
                scene = max(scene, self._scene_size(cluster.items()))
        return accepted, scene

    def _rank(self, items: Int[np.ndarray, "row"], count: int) -> Int[np.ndarray, "row other"]:
        """The ``count`` others that are most alike by coarse features."""
        found = [np.zeros((0, count), dtype=int)]
        for rows in torch.from_numpy(items).split(ROWS_AT_ONCE):
            similar = self.features[rows] @ self.features.T
            similar[torch.arange(len(rows)), rows] = -math.inf
            found.append(similar.topk(count, dim=1).indices.numpy())
        return np.concatenate(found)

    def _measure(
        self, items: Int[np.ndarray, "row"], others: Int[np.ndarray, "row other"]
    ) -> Float[np.ndarray, "row other"]:
        tensors = torch.from_numpy(items), torch.from_numpy(others)
        return picture_distances(self.pictures, *tensors).numpy()

    def _make_symmetric(self) -> None:
        """Of both directions between two pictures the nearer counts, where both were measured."""
        count = len(self.others)
        items = np.arange(count)[:, None]
        keys = np.minimum(items, self.others) * count + np.maximum(items, self.others)
        _, where = np.unique(keys, return_inverse=True)
        smallest = np.full(where.max() + 1, np.inf, dtype=self.distances.dtype)
        np.minimum.at(smallest, where.ravel(), self.distances.ravel())
        self.distances = smallest[where].reshape(keys.shape)

    def _link_all(
        self,
    ) -> tuple[list[Cluster], Float[np.ndarray, "cluster"], Float[np.ndarray, "some 2"]]:
        """The clusters of alike pictures, single ones too, and what is outside of them (`_look_outside`).

        Pictures whose neighbors are all in one cluster, as in a burst, are compared with those outside of it
        until no cluster is alike another one.
        """
        rows, columns = (self.distances <= ALIKE).nonzero()
        edges = np.stack([rows, self.others[rows, columns]])
        lengths = self.distances[rows, columns].astype(float)
        while True:
            clusters, part_of = _link(len(self.others), edges, lengths)
            others, distances = self._look_outside(part_of)
            near = distances[:, 0] <= ALIKE
            if not near.any():
                break
            edges = np.concatenate([edges, np.stack([near.nonzero()[0], others[near]])], axis=1)
            lengths = np.concatenate([lengths, distances[near, 0]])
        order = np.lexsort((distances[:, 0], part_of))
        _, leaders = np.unique(part_of[order], return_index=True)
        distances = distances[order[leaders]]
        return clusters, distances[:, 0], distances[np.isfinite(distances).all(axis=1)]

    def _look_outside(
        self, part_of: Int[np.ndarray, "item"]
    ) -> tuple[Int[np.ndarray, "item"], Float[np.ndarray, "item 2"]]:
        """Each picture's nearest one of another cluster, and the distances of this and of the nearest of a
        third one, which are infinite where there is none.
        """
        others, distances = self.others, self.distances.astype(float)
        hidden = (part_of[others] == part_of[:, None]).all(axis=1).nonzero()[0]
        if len(hidden) and part_of.max():
            found = self._rank_outside(hidden, part_of)
            others, distances = np.pad(others, ((0, 0), (0, 2))), np.pad(distances, ((0, 0), (0, 2)))
            others[:, -2:], others[hidden, -2:] = np.arange(len(others))[:, None], found
            distances[hidden, -2:] = self._measure(hidden, found)
        parts = part_of[others]
        outside = np.where(parts == part_of[:, None], np.inf, distances)
        first = outside.argmin(axis=1)[:, None]
        is_same = parts == np.take_along_axis(parts, first, 1)
        second = np.where(is_same, np.inf, outside).min(axis=1)
        pair = np.stack([np.take_along_axis(outside, first, 1)[:, 0], second], axis=1)
        return np.take_along_axis(others, first, 1)[:, 0], pair

    def _rank_outside(
        self, items: Int[np.ndarray, "row"], part_of: Int[np.ndarray, "item"]
    ) -> Int[np.ndarray, "row 2"]:
        """The most alike picture of another cluster, and that of a third one if there is any."""
        parts, found = torch.from_numpy(part_of), [np.zeros((0, 2), dtype=int)]
        for rows in torch.from_numpy(items).split(ROWS_AT_ONCE):
            similar = self.features[rows] @ self.features.T
            similar[parts[rows][:, None] == parts] = -math.inf
            first = similar.argmax(dim=1)
            similar[parts[first][:, None] == parts] = -math.inf
            second = torch.where(similar.isinf().all(dim=1), first, similar.argmax(dim=1))
            found.append(torch.stack([first, second], dim=1).numpy())
        return np.concatenate(found)

    def _look_inside(self, cluster: Cluster) -> Iterator[list[int]]:
        """The largest clusters inside of a dense one that stand out from the rest of it, and are not its body
        or a class.
        """
        items = cluster.items()
        dimension = estimate_dimension(np.sort(self.distances[items], axis=1))
        ratio = required_ratio(dimension, len(items), LEAST_INSIDE)
        stack = [(part, cluster.link) for part in cluster.parts]
        while stack:
            inside, outside = stack.pop()
            if not inside.parts:
                continue
            if self._stands_out(inside, outside, ratio, len(items) // 2):
                yield inside.items()
            else:
                stack += [(part, inside.link) for part in inside.parts]

    def _stands_out(self, cluster: Cluster, outside: float, ratio: float, most: int | None = None) -> bool:
        """True for a cluster that is far enough from the ``outside`` and is neither a scene nor a chain; with
        ``most``, inside of a dense cluster, nor one of more pictures than that or most of a class, and if it
        has more than a `FEW`, such as all photographs under one light, farther than a few must be.
        """
        if math.isinf(outside) or outside < ratio * cluster.link:
            return False
        items = cluster.items()
        if most is not None and len(items) > FEW:
            is_body = len(items) > most or self._is_most_of_class(items)
            if is_body or outside < max(ratio, UNSURE) * cluster.link:
                return False
        return not self._is_scene(items) and self._is_compact(items)

    def _images(self, items: Sequence[int]) -> list[int]:
        return [image for item in items for image in self.members[item]]

    def _is_scene(self, items: Sequence[int]) -> bool:
        images = self._images(items)
        is_large = len(images) > max(SCENE * self.count, FEWEST_OF_SCENE)
        return is_large and len(self.labels[images].unique()) > 1

    def _is_most_of_class(self, items: Sequence[int]) -> bool:
        labels = self.labels[self._images(items)]
        classes, counts = labels.unique(return_counts=True)
        in_all = torch.stack([(self.labels == label).sum() for label in classes])
        return bool((2 * counts > in_all).any())

    def _scene_size(self, items: Sequence[int]) -> int:
        """How many images show one scene in several classes; 0 if these do not."""
        alike = float(self.features[items].mean(dim=0).square().sum())
        return len(self._images(items)) if alike >= ONE_SCENE and self._is_scene(items) else 0

    def _is_compact(self, items: Sequence[int]) -> bool:
        """True if pictures are alike on average: not the ends of a chain alone."""
        if len(items) < 3:
            return True
        first, second = np.triu_indices(len(items), 1) if len(items) < 500 else _spread(len(items))
        step = -(-len(first) // MOST_PAIRS)
        numbers = np.array(items)
        lengths = self._measure(numbers[first[::step]], numbers[second[::step]][:, None])
        return bool(lengths.mean() <= COMPACT)


def _link(
    count: int, edges: Int[np.ndarray, "2 edge"], lengths: Float[np.ndarray, "edge"]
) -> tuple[list[Cluster], Int[np.ndarray, "item"]]:
    """Single linkage: the clusters, single pictures too, and the number of that of each picture."""
    from scipy.sparse import coo_array  # takes as long to load as some data sets
    from scipy.sparse.csgraph import minimum_spanning_tree

    ends = np.sort(edges, axis=0)
    ends, where = np.unique(ends, axis=1, return_index=True)  # a sparse array adds what is there twice
    tree = minimum_spanning_tree(coo_array((lengths[where], tuple(ends)), shape=(count, count))).tocoo()
    clusters = {item: Cluster(0.0, item) for item in range(count)}
    root = [*range(count)]

    def find(item: int) -> int:
        while root[item] != item:
            root[item] = item = root[root[item]]
        return item

    for number in np.lexsort((tree.col, tree.row, tree.data)).tolist():
        first, second = sorted((find(int(tree.row[number])), find(int(tree.col[number]))))
        root[second] = first
        clusters[first] = Cluster(float(tree.data[number]), parts=(clusters[first], clusters.pop(second)))
    numbers = {item: number for number, item in enumerate(sorted(clusters))}
    part_of = np.array([numbers[find(item)] for item in range(count)])
    return [clusters[item] for item in numbers], part_of


def _spread(count: int) -> tuple[Int[np.ndarray, "pair"], Int[np.ndarray, "pair"]]:
    """Pairs of far places in a long row."""
    first = np.arange(count)
    return first, (first + count // 2) % count


def estimate_dimension(distances: Float[np.ndarray, "item neighbor"]) -> float | None:
    """In how many dimensions pictures lie, by the sorted distances to their neighbors; None for too few.

    The ratio of the (k+1)-th to the k-th distance exceeds R for R ** (-k D) of the pictures; its median is
    2 ** (1 / (k D)). The first ratio says nothing where most pictures have a near-duplicate, the others
    nothing among bursts, so the median of the estimates counts.
    """
    if len(distances) < FEWEST or distances.shape[1] < 2:
        return None
    steps = np.log(distances[:, 1:] / distances[:, :-1])[:, :LOOKED_AT]
    medians = np.maximum(np.median(steps, axis=0), ROUNDING)
    return float(np.median(math.log(2) / (medians * np.arange(1, len(medians) + 1))))


def required_ratio(dimension: float | None, count: int, least: float) -> float:
    """By how much the nearest other must be farther than those in a cluster, that by chance `BY_CHANCE` pairs
    of ``count`` pictures are as far from all others.
    """
    if dimension is None:
        return UNSURE
    return max(least, math.exp(math.log(count / (4 * BY_CHANCE)) / dimension))
