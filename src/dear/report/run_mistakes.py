"""The mistakes of runs in their report: those of several seeds together, by data set, part and method.

A matrix for each part, method and data set would make a page of many runs heavy: 12 data sets and 16 methods
have 384. So a page shows 32 at most, as many as 16 methods have on the two halves of one data set, and then
those of fewer methods: of the page's method and the one it is compared with, then of the page's method alone.
The reader can name others (``dear report --mistakes-of``); all numbers are in the tables. [ours]
"""

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from pandas import DataFrame, concat
from PIL import Image

from dear.data.images.decode import as_image, decode, read_image
from dear.data.loading import of_world
from dear.data.world.tasks import WorldImages, load_task
from dear.errors import DataError, DearError, without_surrogates
from dear.evaluation.predictions import list_parts, load_predictions
from dear.report.drawing import Drawing
from dear.report.grid import csv_file
from dear.report.mistakes import Mistakes, MistakesSection, find_mistakes, mistakes_section
from dear.report.records import (
    Record,
    data_set,
    data_set_title,
    distinct,
    method_label,
    protocol,
    record_title,
)

EXAMPLES = 12
"""Confident mistakes of a part that a page shows."""
MAX_PARTS = 32
"""Parts of results that a page shows."""
MAX_DRAWN = 100
"""Classes up to which a matrix is drawn."""
WORST = 50
"""Classes that the table of a part shows, the worst."""
LONGEST_NAME = 100  # characters of a matrix's name, which its files have too
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


class RunMistakes(NamedTuple):
    """What a method gets wrong on a part of a data set's test images. Counts are sums over seeds.

    Attributes:
        dataset, title: The data set that was tested on.
        shots: Training images for each class.
    """

    protocol: str
    dataset: str
    title: str
    part: str
    method: str
    shots: int
    seeds: int
    mistakes: Mistakes

    def section(self, name: str) -> MistakesSection:
        """The section of the page; ``name`` is that of the matrix."""
        pictures = [self._picture(example) for example in self.mistakes.examples.itertuples()]
        return mistakes_section(self.mistakes, pictures, name, most_drawn=MAX_DRAWN, worst=WORST)

    def _picture(self, example: Any) -> Image.Image | None:
        """The image of an example: its file if it is still there, or that of the Attribute World."""
        if example.file:
            return _read_picture(Path(example.folder, example.file))
        images = _load_world(self.dataset)
        if images is None or example.image >= len(images):
            return None
        return as_image(images.load(torch.tensor([example.image]))[0])


@lru_cache(MAX_PICTURES)
def _read_picture(path: Path) -> Image.Image | None:
    try:
        image = as_image(decode(path, SHORT_SIDE, read_image(path)))
    except DearError:
        return None
    image.thumbnail((LONGEST, LONGEST))
    return image


@cache
def _load_world(task: str) -> WorldImages | None:
    return load_task(task).test if of_world([task]) else None


def mistakes_by_part(records: Iterable[Record]) -> list[RunMistakes]:
    """The mistakes in the predictions beside some records, in the order of the records.

    Raises DataError for a damaged file and for runs of one method on different test images or classes.
    """
    groups = defaultdict[tuple[Any, ...], list[Record]](list)
    for record in records:
        for part in list_parts(record["predictions"]) if record.get("predictions") else ():
            key = protocol(record), data_set(record), part, method_label(record), record.get("shots")
            groups[key].append(record)
    return [_over_seeds(part, runs) for (_, _, part, *_), runs in groups.items()]


def _over_seeds(part: str, runs: Sequence[Record]) -> RunMistakes:
    predictions = [load_predictions(run["predictions"], part) for run in runs]
    same = (np.array_equal(predictions[0].labels, other.labels) for other in predictions)
    if not all(same) or any([*other.classes] != [*predictions[0].classes] for other in predictions):
        raise DataError(f"{record_title(runs[0])}: another seed was tested on other images or classes")
    kind_of_part, _, target = part.partition("/")
    targets = {without_surrogates(str(tested["name"])): tested for tested in runs[0].get("targets") or ()}
    tested = targets.get(target, {"name": target}) if target else runs[0]["dataset"]
    return RunMistakes(
        protocol(runs[0]),
        tested["name"],
        str(tested.get("title") or target) if target else data_set_title(runs[0]),
        PART_TITLES.get(kind_of_part, kind_of_part),
        method_label(runs[0]),
        runs[0].get("shots") or 0,
        len(runs),
        find_mistakes(predictions, EXAMPLES),
    )


@dataclass(frozen=True)
class MistakesPage:
    """What the page of some runs shows of their mistakes.

    Attributes:
        datasets: By data set (and protocol, if there are several) the methods, and the parts of each.
        at_shots: True if the runs are of several numbers of shots.
        methods: The methods shown.
        hidden: The methods that the page has no room for.
        without: Methods with a run that has no predictions beside its record.
    """

    datasets: Mapping[str, Mapping[str, list[tuple[RunMistakes, MistakesSection]]]]
    at_shots: bool
    methods: list[str]
    hidden: list[str]
    without: list[str]

    def matrices(self, methods: Collection[str]) -> list[Drawing]:
        """The confusion matrices of some methods."""
        by_method = (item for parts in self.datasets.values() for item in parts.items())
        sections = [section for method, parts in by_method if method in methods for _, section in parts]
        return [section.matrix for section in sections if section.matrix is not None]


def mistakes_page(
    parts: Sequence[RunMistakes],
    records: Sequence[Record],
    main: str,
    reference: str | None,
    requested: Sequence[str] = (),
) -> MistakesPage | None:
    """What the page shows of the mistakes of some records, or None if no run has predictions. With several
    numbers of shots, the largest is used.

    Raises DataError for a requested method without predictions.
    """
    methods = distinct(part.method for part in parts)
    if unknown := [method for method in requested if method not in methods]:
        raise DataError(
            f"no run of {unknown[0]!r} has predictions beside its record: "
            f"those that do are of {', '.join(methods) or 'no method'}."
        )
    if not parts:
        return None
    most_shots = defaultdict[tuple[str, ...], int](int)
    for part in parts:
        key = part.protocol, part.dataset, part.method
        most_shots[key] = max(most_shots[key], part.shots)
    at_most = [part for part in parts if part.shots == most_shots[part.protocol, part.dataset, part.method]]
    counts = Counter(part.method for part in at_most)
    selections = [[*requested]] if requested else [methods, [main, str(reference)]]
    fitting = [some for some in selections if requested or 0 < sum(counts[m] for m in some) <= MAX_PARTS]
    selected = fitting[0] if fitting else [main]
    visible = [part for part in at_most if part.method in selected] or at_most
    several_protocols = len({part.protocol for part in parts}) > 1
    names: set[str] = set()
    datasets = defaultdict[str, dict[str, list[tuple[RunMistakes, MistakesSection]]]](dict)
    for runs in visible if requested else visible[:MAX_PARTS]:
        title = f"{runs.title}, {runs.protocol}" if several_protocols else runs.title
        section = runs.section(_matrix_name(runs, names))
        datasets[title].setdefault(runs.method, []).append((runs, section))
    shown = distinct(method for of_title in datasets.values() for method in of_title)
    return MistakesPage(
        datasets,
        len({part.shots for part in parts}) > 1,
        shown,
        [method for method in methods if method not in shown],
        distinct(method_label(record) for record in records if not record.get("predictions")),
    )


def _matrix_name(runs: RunMistakes, names: set[str]) -> str:
    """The name of a matrix and of its files, which is added to the names in use."""
    method = runs.method.replace("++", "pp").replace("+", "-plus")
    words = f"confusion {runs.dataset} {runs.part.split()[0]} {method}".lower()
    name = base = re.sub(r"[^a-z0-9]+", "-", words).strip("-")[:LONGEST_NAME]
    number = 1
    while name in names:
        number += 1
        name = f"{base}-{number}"
    names.add(name)
    return name


def mistakes_files(parts: Iterable[RunMistakes]) -> dict[str, bytes]:
    """Tables of all mistakes as CSV by file name; none if no run has predictions."""
    tables = defaultdict[str, list[DataFrame]](list)
    for runs in parts:
        facts = {
            "data set": runs.title, "protocol": runs.protocol, "part": runs.part, "method": runs.method,
            "shots": runs.shots, "seeds": runs.seeds,
        }  # fmt: skip
        for name, table in runs.mistakes.tables().items():
            facts_of_rows = DataFrame([facts] * len(table), columns=[*facts], index=table.index)
            tables[name].append(facts_of_rows.join(table))
    return {name: csv_file(concat(of_parts)) for name, of_parts in tables.items()}
