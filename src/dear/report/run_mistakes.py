"""The mistakes of runs in their report: those of several seeds together, by data set, part and method.

A matrix for each part, method and data set would make a page of many runs heavy: 12 data sets and 16 methods
have 384. So a page shows 32 at most, as many as 16 methods have on the two halves of one data set, and then
those of fewer methods: of the page's method and the one it is compared with, then of the page's method alone.
The reader can name others (``dear report --mistakes-of``); all numbers are in the tables. [ours]
"""

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import torch
from pandas import DataFrame, concat
from PIL import Image

from dear.data.images.decode import as_image, decode
from dear.data.images.formats import read_image
from dear.data.loading import of_world
from dear.data.world.tasks import WorldImages, load_task
from dear.errors import DataError, DearError
from dear.evaluation.mistakes import RECORDED_MISTAKES, Mistakes, content_hash, varied
from dear.evaluation.schema import Mistake
from dear.report.drawing import Drawing
from dear.report.grid import csv_file
from dear.report.mistakes import MistakesSection, mistakes_section, mistakes_tables
from dear.report.records import (
    Record,
    data_set,
    data_set_title,
    distinct,
    method_label,
    protocol,
    record_title,
)

MAX_PARTS = 32
"""Parts of results that a page shows."""
MAX_DRAWN = 100
"""Classes up to which a matrix is drawn."""
LONGEST_NAME = 100  # characters of a matrix's name, which its files have too
WORST = 50
"""Classes that the table of a part shows, the worst."""
SHORT_SIDE, LONGEST = 256, 768
"""Pixels of the shorter side of a picture, and at most of the longer one."""
MAX_PICTURES = 512
"""Pictures that are remembered: more than a page shows."""
PART_TITLES = {
    "base": "base classes",
    "novel": "novel classes",
    "all": "all classes",
    "source": "the source",
    "targets": "a target",
}


@dataclass(frozen=True)
class TestedImages:
    """Where the test images of a record were: the name of the data set, its identity, the folder of its files
    if it has any.
    """

    dataset: str
    identity: str | None
    folder: str | None

    def picture(self, mistake: Mistake) -> Image.Image | None:
        """The image of a mistake, if it is still what was tested on: a file of the same content, or the same
        image of the Attribute World.
        """
        if mistake.file is None or self.folder is None:
            images = _world_images(self.dataset)
            if images is None or images.identity != self.identity or mistake.index >= len(images):
                return None
            return as_image(images.load(torch.tensor([mistake.index]))[0])
        return _tested(Path(self.folder, mistake.file), mistake.sha256)


@dataclass(frozen=True)
class RunMistakes:
    """What a method gets wrong on a part of a data set's test images. Counts are sums over seeds; an image
    that several seeds get wrong is in the mistakes once, with the most confident.

    Attributes:
        dataset: Name of the data set that was tested on.
        shots: Training images for each class.
        tested: By mistake, where its image was.
    """

    protocol: str
    dataset: str
    title: str
    part: str
    method: str
    shots: int
    seeds: int
    mistakes: Mistakes
    tested: tuple[TestedImages, ...]

    def section(self, name: str) -> MistakesSection:
        """The section of the page; ``name`` is that of the matrix."""
        examples = zip(self.tested, self.mistakes.examples, strict=True)
        pictures = [images.picture(mistake) for images, mistake in examples]
        return mistakes_section(self.mistakes, pictures, name, most_drawn=MAX_DRAWN, worst=WORST)


@lru_cache(MAX_PICTURES)
def _tested(path: Path, sha256: str | None) -> Image.Image | None:
    """The picture of a file if it still has this content."""
    try:
        content = read_image(path)
        if content_hash(content) != sha256:
            return None
        image = as_image(decode(path, SHORT_SIDE, content))
    except DearError:
        return None
    image.thumbnail((LONGEST, LONGEST))
    return image


@cache
def _world_images(task: str) -> WorldImages | None:
    return load_task(task).test if of_world([task]) else None


_Group = tuple[str, str, tuple[str, ...], str, int]
"""Protocol, data set, part, method, shots."""


def mistakes_by_part(records: Iterable[Record]) -> list[RunMistakes]:
    """The mistakes that some records hold, in their order.

    Raises DataError for runs of one method with different test images or classes.
    """
    groups: dict[_Group, tuple[str, list[tuple[Record, Mapping[str, Any]]]]] = {}
    for record in records:
        titles = {target["name"]: target.get("title") for target in record.get("targets") or ()}
        for entry in record.get("mistakes") or ():
            part = tuple(name for name in entry["part"] if isinstance(name, str))
            shots = record.get("shots") or 0
            key = (protocol(record), data_set(record), part, method_label(record), shots)
            # The keys of a target's scores end with its name.
            title = str(titles.get(part[1]) or part[1]) if len(part) > 1 else data_set_title(record)
            groups.setdefault(key, (title, []))[1].append((record, entry))
    return [_over_seeds(*key, *group) for key, group in groups.items()]


def _over_seeds(
    kind: str,
    dataset: str,
    part: Sequence[str],
    method: str,
    shots: int,
    title: str,
    runs: Sequence[tuple[Record, Mapping[str, Any]]],
) -> RunMistakes:
    record, first = runs[0]
    tested_on = part[1] if len(part) > 1 else dataset
    entries = [entry for _, entry in runs]
    if any(entry["classes"] != first["classes"] or entry["images"] != first["images"] for entry in entries):
        raise DataError(f"{record_title(record)}: another seed was tested on other images or classes")
    by_seed = [Mistakes.from_record(entry) for entry in entries]
    pairs: dict[tuple[int, int], int] = {}
    for label, prediction, count in (confusion for mistakes in by_seed for confusion in mistakes.confusions):
        pairs[label, prediction] = pairs.get((label, prediction), 0) + count
    examples = [
        (TestedImages(tested_on, entry.get("identity"), entry.get("folder")), mistake)
        for entry, mistakes in zip(entries, by_seed, strict=True)
        for mistake in mistakes.examples
    ]
    by_image: dict[tuple[str | None, int], tuple[TestedImages, Mistake]] = {}
    for images, mistake in sorted(examples, key=lambda example: -example[1].confidence):
        by_image.setdefault((images.identity, mistake.index), (images, mistake))
    by_confusion = [
        ((images, mistake), (mistake.label, mistake.prediction)) for images, mistake in by_image.values()
    ]
    distinct_examples = varied(by_confusion, RECORDED_MISTAKES)
    confusions = [(label, prediction, count) for (label, prediction), count in pairs.items()]
    return RunMistakes(
        kind,
        tested_on,
        title,
        PART_TITLES.get(part[0], part[0]),
        method,
        shots,
        len(runs),
        Mistakes(
            by_seed[0].classes,
            _sum(mistakes.images for mistakes in by_seed),
            _sum(mistakes.correct for mistakes in by_seed),
            _sum(mistakes.predicted for mistakes in by_seed),
            tuple(sorted(confusions, key=lambda pair: (-pair[2], pair))),
            sum(mistakes.left_out for mistakes in by_seed),
            tuple(mistake for _, mistake in distinct_examples),
        ),
        tuple(images for images, _ in distinct_examples),
    )


def _sum(counts: Iterable[Sequence[int]]) -> tuple[int, ...]:
    return tuple(map(sum, zip(*counts, strict=True)))


@dataclass(frozen=True)
class Part:
    """A part of the results on the page; ``at_shots`` if the runs are of several numbers of shots."""

    runs: RunMistakes
    at_shots: bool
    section: MistakesSection


@dataclass(frozen=True)
class MistakesPage:
    """What the page of some runs shows of their mistakes.

    Attributes:
        datasets: By data set (and protocol, if there are several) the methods, and the parts of each.
        methods: The methods shown.
        hidden: The methods that the page has no room for.
        without: Methods with a record that holds no mistakes.
    """

    datasets: Mapping[str, Mapping[str, list[Part]]]
    methods: list[str]
    hidden: list[str]
    without: list[str]

    def matrices(self, methods: Collection[str]) -> list[Drawing]:
        """The confusion matrices of some methods."""
        by_method = (item for parts in self.datasets.values() for item in parts.items())
        sections = [part.section for method, parts in by_method if method in methods for part in parts]
        return [section.matrix for section in sections if section.matrix is not None]


def mistakes_page(
    records: Sequence[Record], main: str, reference: str | None, requested: Sequence[str] = ()
) -> MistakesPage | None:
    """The mistakes of some runs, or None if no record has any. With several numbers of shots, the largest is
    used.

    Raises DataError for a requested method without mistakes, and as `mistakes_by_part`.
    """
    parts = mistakes_by_part(records)
    methods = distinct(part.method for part in parts)
    if unknown := [method for method in requested if method not in methods]:
        raise DataError(
            f"no record holds the mistakes of {unknown[0]!r}: "
            f"those that do are of {', '.join(methods) or 'no method'}."
        )
    if not parts:
        return None
    most_shots: dict[tuple[str, str, str], int] = {}
    for part in parts:
        key = part.protocol, part.dataset, part.method
        most_shots[key] = max(most_shots.get(key, 0), part.shots)
    visible = _visible(
        [part for part in parts if part.shots == most_shots[part.protocol, part.dataset, part.method]],
        [methods, [main] if reference is None else [main, reference]],
        main,
        requested,
    )
    several_protocols = len({part.protocol for part in parts}) > 1
    at_shots = len({part.shots for part in parts}) > 1
    names: set[str] = set()
    datasets: dict[str, dict[str, list[Part]]] = {}
    for runs in visible:
        title = f"{runs.title}, {runs.protocol}" if several_protocols else runs.title
        section = Part(runs, at_shots, runs.section(_matrix_name(runs, names)))
        datasets.setdefault(title, {}).setdefault(runs.method, []).append(section)
    shown = distinct(part.method for part in visible)
    return MistakesPage(
        datasets,
        shown,
        [method for method in methods if method not in shown],
        distinct(method_label(record) for record in records if not record.get("mistakes")),
    )


def _visible(
    parts: list[RunMistakes], selections: Sequence[Sequence[str]], main: str, requested: Sequence[str]
) -> list[RunMistakes]:
    """The parts of the requested methods, or of the first selection of methods that a page has room for."""

    def parts_of(methods: Sequence[str]) -> list[RunMistakes]:
        names = {*methods}
        return [part for part in parts if part.method in names]

    if requested:
        return parts_of(requested)
    fitting = [methods for methods in selections if 0 < len(parts_of(methods)) <= MAX_PARTS]
    return (parts_of(fitting[0] if fitting else [main]) or parts)[:MAX_PARTS]


def _matrix_name(runs: RunMistakes, names: set[str]) -> str:
    """The name of a matrix and of its files, which is added to the names in use."""
    words = (
        f"confusion {runs.dataset} {runs.part.split()[0]} {runs.method}".replace("++", "pp")
        .replace("+", "-plus")
        .lower()
    )
    name = base = re.sub(r"[^a-z0-9]+", "-", words).strip("-")[:LONGEST_NAME]
    number = 1
    while name in names:
        number += 1
        name = f"{base}-{number}"
    names.add(name)
    return name


def mistakes_files(records: Sequence[Record]) -> dict[str, bytes]:
    """Tables of all mistakes as CSV by file name; none if no record has any."""
    tables = defaultdict[str, list[DataFrame]](list)
    for runs in mistakes_by_part(records):
        facts = {
            "data set": runs.title, "protocol": runs.protocol, "part": runs.part, "method": runs.method,
            "shots": runs.shots, "seeds": runs.seeds,
        }  # fmt: skip
        for name, table in mistakes_tables(runs.mistakes).items():
            tables[name].append(DataFrame([facts] * len(table), columns=[*facts]).join(table))
    return {name: csv_file(concat(parts)) for name, parts in tables.items()}
