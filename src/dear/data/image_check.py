"""Find the images of a data set that have the same content or belong together."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path

import numpy as np
import torch

from dear.data.dataset import Dataset, Images
from dear.data.fewshot import Subset, leave_subsets
from dear.data.images.near_duplicates import MOST_COMPARED, find_near_duplicates
from dear.data.images.photos import LoadedImages, image_hashes
from dear.data.images.thumbnails import Thumbnail
from dear.data.images.video import split_frame
from dear.data.settings import DataSettings
from dear.data.sources.listing import Listing
from dear.errors import DataError, warn
from dear.text import FEW, list_names, plural

NO_GROUP = "none"
"""The setting with which near-duplicates are parted."""


def group_images(
    listing: Listing,
    settings: DataSettings,
    thumbnails: Mapping[str, Thumbnail],
    copies: Sequence[Sequence[str]] = (),
) -> tuple[dict[str, str], list[str]]:
    """The group of each image that is in one with others, by path: ``copies``, near-duplicates, and those of
    the same group by `DataSettings.group`; and remarks for the user. Raises DataError for a group that is
    neither a column nor a match.
    """
    of_path, paths = dict(listing.groups), listing.paths
    if settings.group not in (None, NO_GROUP) and not of_path:
        pattern = re.compile(settings.group or "")
        matches = {path: pattern.search(path) for path in paths}
        of_path = {path: match[match.re.groups and 1] or "" for path, match in matches.items() if match}
        if not any(of_path.values()):
            raise DataError(
                f"{listing.name}: group {settings.group!r} is no column of its table, and matches no path, "
                f"such as {paths[0]}."
                if paths
                else f"{listing.name} has no images to group."
            )
    first = dict[str, str]()
    pairs = [(path, first.setdefault(group, path)) for path, group in of_path.items() if group]
    videos = {path: frame[0] for path in paths if (frame := split_frame(path))}
    leaders = dict[Path, str]()
    pairs += [(path, leaders.setdefault(video, path)) for path, video in videos.items()]
    if settings.group != NO_GROUP:  # copies of plain pictures have no likeness that could be told
        pairs += [(group[0], other) for group in copies for other in group[1:]]
    notes, known = _describe_spread(listing, of_path), [path for path in paths if path in thumbnails]
    if settings.group != NO_GROUP and 1 < len(known) <= MOST_COMPARED:
        labels = _labels(listing)
        found = find_near_duplicates(
            torch.stack([thumbnails[path] for path in known]), torch.tensor([labels[path] for path in known])
        )
        pairs += [(known[group[0]], known[other]) for group in found.groups for other in group[1:]]
        if found.scene and not of_path:
            notes.append(
                f"{found.scene} of {len(paths)} images show one scene, in several classes: each counts as an "
                "image of its own. If some belong together, such as the photographs of one object, "
                "--dataset.group says which"
            )
    if not pairs:
        return {}, notes
    from scipy.sparse import coo_array  # takes as long to load as some data sets
    from scipy.sparse.csgraph import connected_components

    numbers = {path: number for number, path in enumerate(paths)}
    edges = np.array([(numbers[path], numbers[other]) for path, other in pairs], dtype=int).T
    graph = coo_array((np.ones(edges.shape[1]), edges), shape=(len(paths), len(paths)))
    _, components = connected_components(graph, directed=False)
    sizes, named = Counter(components.tolist()), dict[int, str]()
    groups = {
        path: named.setdefault(number, path)
        for path, number in zip(paths, components.tolist(), strict=True)
        if sizes[number] > 1
    }
    return groups, notes


def _describe_spread(listing: Listing, group_of: Mapping[str, str]) -> list[str]:
    """A note on groups of several classes: two clips of one name, or a site that has all classes."""
    labels, classes = _labels(listing), dict[str, set[int]]()
    for path, group in group_of.items():
        if group and path in labels:
            classes.setdefault(group, set()).add(labels[path])
    spread = {group: found for group, found in classes.items() if len(found) > 1}
    if not spread:
        return []
    group, found = next(iter(spread.items()))
    names = list_names([listing.keys[label] for label in sorted(found)], FEW)
    stay = f"{plural(len(spread), 'group')} {'stays' if len(spread) == 1 else 'stay'} together over classes"
    return [
        f"by --dataset.group {stay}: {group!r} is in {names}. If they are different things of one name, "
        "write a pattern with the class, such as '[^/]+/clip_[0-9]+'"
    ]


def name_groups(groups: Mapping[str, str], contents: Mapping[str, bytes]) -> dict[str, str]:
    """The groups by path, each called by the contents of its images: whatever their files are called."""
    names = dict[str, str]()
    for path, group in groups.items():
        name = contents.get(path, b"").hex() or path
        names[group] = min(names.get(group, name), name)
    return {path: names[group] for path, group in groups.items()}


def describe_leak(listing: Listing, groups: Mapping[str, str]) -> list[str]:
    """A warning of test images that are near-duplicates of training images, or of one group with them."""
    trained = {groups.get(row.path) for row in listing.splits.get("train", ())} - {None}
    tested = listing.splits.get("test", ())
    if not (twins := [row.path for row in tested if groups.get(row.path) in trained]):
        return []
    return [
        f"the split leaks: {len(twins)} of {plural(len(tested), 'test image')} are near-duplicates of "
        f"training images, or of one group with them: {list_names(twins, FEW)}"
    ]


def find_copies(contents: Mapping[str, bytes]) -> list[list[str]]:
    """Groups of images with the same content, in their order; what cannot be read has an empty one."""
    groups = dict[bytes, list[str]]()
    for path, content in contents.items():
        if content:
            groups.setdefault(content, []).append(path)
    return [group for group in groups.values() if len(group) > 1]


def contradictions(listing: Listing, groups: list[list[str]]) -> list[str]:
    """The pictures with several labels, a line for each: a file of each label. A benchmark has none: it stays
    as it was published.
    """
    labels, lines = _labels(listing), list[str]()
    for group in groups if not listing.benchmark else ():
        of_label = {labels[path]: path for path in reversed(group)}
        if len(of_label) > 1:
            files = (f"{of_label[label]} ({listing.keys[label]!r})" for label in sorted(of_label))
            lines.append(" = ".join(files))
    return lines


def duplicate_warnings(listing: Listing, groups: list[list[str]]) -> list[str]:
    """A warning for each kind of repetition of a picture with one label, with the first group of files."""
    labels = _labels(listing)
    parts = {row.path: part for part, rows in listing.splits.items() for row in rows}
    alike = [group for group in groups if len({labels[path] for path in group}) == 1]
    in_one = [group for group in alike if len({parts[path] for path in group}) == 1]
    kinds = {
        "in several splits (`dear fit` leaves those out of the test)": [
            group for group in alike if group not in in_one
        ],
        "in one class": in_one,
    }
    return [
        f"{plural(len(repeated), 'image')} {'is' if len(repeated) == 1 else 'are'} there more than once "
        f"{where}: {' = '.join(repeated[0][:FEW])}"
        + (f" = {len(repeated[0]) - FEW} others" if len(repeated[0]) > FEW else "")
        + (f" ... and {len(repeated) - 1} more" if len(repeated) > 1 else "")
        for where, repeated in kinds.items()
        if repeated
    ]


def _labels(listing: Listing) -> dict[str, int]:
    return {row.path: row.label for rows in listing.splits.values() for row in rows}


def leave_out_copies(dataset: Dataset, trained_on: Dataset) -> Dataset:
    """A data set without the test images that are copies, by content, of training or validation images of the
    one that is trained on, with a warning: all methods, seeds and shots are then tested on the same images.

    A benchmark keeps its published split, with a note. Raises DataError if no test image is left.
    """
    if dataset.benchmark:
        warn(
            f"{dataset.name}: its published split is kept, even where test images are copies of training ones"
        )
        return dataset
    parts = [dataset.test, *(part for part in (trained_on.train, trained_on.val) if part is not None)]
    sizes = [*map(_sizes, parts)]
    shared = {*sizes[0]} & {*chain.from_iterable(sizes[1:])}  # only images of these sizes are read
    suspects = [[i for i, size in enumerate(part_sizes) if size in shared] for part_sizes in sizes]
    tested, *known = (image_hashes(part, indices) for part, indices in zip(parts, suspects, strict=True))
    trained = {*chain.from_iterable(known)}
    copies = {i for i, digest in zip(suspects[0], tested, strict=True) if digest in trained}
    if not copies:
        return dataset
    count, name = len(dataset.test), dataset.name
    if len(copies) == count:
        raise DataError(
            f"all {count} test images of {name} are copies of training images: test on other images."
        )
    warn(f"{name}: {len(copies)} of {count} test images are left out: they are copies of training images")
    kept = torch.tensor([index for index in range(count) if index not in copies])
    return replace(dataset, test=Subset(dataset.test, kept), left_out=len(copies))


def _sizes(images: Images) -> list[int | None]:
    """The bytes of each image's file, None for images in memory; empty for the Attribute World."""
    whole, indices = leave_subsets(images, torch.arange(len(images)))
    return [whole.sizes[index] for index in indices.tolist()] if isinstance(whole, LoadedImages) else []
