"""The mistakes of runs in their report: those of several seeds together, by data set, part and method.

A page shows its main method and the one that this is compared with, 32 parts at most: a matrix for each
part, method and data set would make a page of many runs heavy, for 12 data sets and 16 methods have 384. All
numbers are in the tables. [ours]
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from pandas import DataFrame, concat
from PIL import Image

from dear.data.images.decode import as_image, decode, read_image
from dear.data.loading import of_world
from dear.errors import DataError, DearError
from dear.evaluation.predictions import list_parts, load_predictions
from dear.evaluation.records import file_part
from dear.report.grid import csv_file
from dear.report.mistakes import Mistakes, MistakesSection, find_mistakes, mistakes_section
from dear.report.records import (
    Record,
    data_set,
    data_set_title,
    distinct,
    grouped,
    method_label,
    protocol,
    record_title,
)
from dear.stats import LEVEL, describe_groups, share_interval
from dear.text import plural, without_surrogates
from dear.world.tasks import WorldImages, load_task

MAX_PARTS = 32
"""Parts of results that a page shows."""
EXAMPLES = 12  # mistakes of a part that are shown as pictures
SHORT_SIDE = 256  # pixels of a picture
PART_TITLES = {
    "base": "base classes",
    "novel": "novel classes",
    "all": "all classes",
    "source": "source",
    "targets": "target",
}


class RunMistakes(NamedTuple):
    """What a method gets wrong on a part of a data set's test images. Counts are sums over seeds.

    Attributes:
        dataset, title: The data set that was tested on.
        shots: Training images for each class.
        groups: How many groups the images are from; an image that is in none counts as one.
    """

    protocol: str
    dataset: str
    title: str
    part: str
    method: str
    shots: int
    seeds: int
    groups: int
    mistakes: Mistakes

    @property
    def slug(self) -> str:
        """The name of its matrix and of its file."""
        method = self.method.replace("++", "pp").replace("+", "-plus")
        return file_part(f"confusion {self.dataset} {self.part.split()[0]} {method}".lower())

    def section(self, name: str) -> MistakesSection:
        """The section of the page; ``name`` is that of the matrix."""
        pictures = [self._picture(example) for example in self.mistakes.examples.head(EXAMPLES).itertuples()]
        return mistakes_section(self.mistakes, pictures, name)

    def _picture(self, example: Any) -> Image.Image | None:
        """The image of an example: its file if it is still there, or that of the Attribute World."""
        if example.file:
            path = Path(example.folder, example.file)
            try:
                return as_image(decode(path, SHORT_SIDE, read_image(path)))
            except DearError:
                return None
        images = _load_world(self.dataset)
        if images is None or example.image >= len(images):
            return None
        return as_image(images.load(torch.tensor([example.image]))[0])


@cache
def _load_world(task: str) -> WorldImages | None:
    return load_task(task).test if of_world([task]) else None


def mistakes_by_part(records: Iterable[Record]) -> list[RunMistakes]:
    """The mistakes in the predictions beside some records, in the order of the records.

    Raises DataError for a damaged file and for runs of one method on different test images or classes.
    """
    parts = [
        (part, record)
        for record in records
        if record.get("predictions")
        for part in list_parts(record["predictions"])
    ]

    def together(item: tuple[str, Record]) -> tuple[Any, ...]:
        part, run = item
        return part, protocol(run), data_set(run), method_label(run), run.get("shots")

    groups = grouped(parts, together)
    return [_over_seeds(part, [run for _, run in runs]) for (part, *_), runs in groups.items()]


def _over_seeds(part: str, runs: Sequence[Record]) -> RunMistakes:
    first, *others = predictions = [load_predictions(run["predictions"], part) for run in runs]
    for other in others:
        if not (np.array_equal(first.labels, other.labels) and [*first.classes] == [*other.classes]):
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
        len({*first.groups.tolist()}),
        find_mistakes(predictions),
    )


def mistakes_page(
    parts: Sequence[RunMistakes],
    records: Sequence[Record],
    main: str,
    reference: str | None,
) -> dict[str, Any]:
    """What the page shows of the mistakes of some records: ``datasets``, by data set (and protocol, if there
    are several) the sections of each method's parts; the ``shown`` methods, the ``hidden`` ones that there is
    no room for, and those ``without`` predictions; {} if no run has predictions. With several numbers of
    shots, the largest is used.
    """
    methods = distinct(part.method for part in parts)
    if not parts:
        return {}
    runs_of = grouped(parts, lambda part: (part.protocol, part.dataset, part.method))
    largest = [part for some in runs_of.values() for part in some if part.shots == max(p.shots for p in some)]
    visible = [part for part in largest if part.method in (main, reference)] or largest
    several_protocols = len({part.protocol for part in parts}) > 1
    datasets = defaultdict[str, dict[str, list[tuple[RunMistakes, MistakesSection]]]](dict)
    names = Counter[str]()
    for runs in visible[:MAX_PARTS]:
        title = f"{runs.title}, {runs.protocol}" if several_protocols else runs.title
        names[name := runs.slug] += 1
        section = runs.section(name if names[name] == 1 else f"{name}-{names[name]}")
        datasets[title].setdefault(runs.method, []).append((runs, section))
    shown = distinct(part.method for part in visible[:MAX_PARTS])
    return {
        "datasets": datasets,
        "at_shots": len({part.shots for part in parts}) > 1,
        "shown": shown,
        "hidden": [method for method in methods if method not in shown],
        "without": distinct(method_label(record) for record in records if not record.get("predictions")),
    }


def describe_tests(parts: Iterable[RunMistakes], method: str) -> list[str]:
    """For each data set and part, how many test images there are, and the accuracy of a method with its
    interval: that of Wilson, for as many images as there are, over seeds too; and whether these are from
    few groups.
    """
    lines = []
    for runs in (part for part in parts if part.method == method):
        images, accuracy = runs.mistakes.total // runs.seeds, runs.mistakes.accuracy
        low, high = share_interval(round(accuracy * images), images)
        line = (
            f"{plural(images, 'test image')} of {runs.title} ({runs.part}): {100 * accuracy:.1f}% right "
            f"({LEVEL:.0%} interval {100 * low:.1f} to {100 * high:.1f}%)."
        )
        lines.append(" ".join([line, *describe_groups(runs.groups, images)]))
    return lines


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
