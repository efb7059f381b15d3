"""The published benchmarks in CoOp's folder layout: a table (benchmarks.json) and class-name files."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from itertools import chain
from pathlib import Path
from shlex import quote
from typing import Any

from dear.data.settings import DataSettings
from dear.data.sources.listing import Listing, Report, refuse, require_inside, require_path
from dear.data.sources.naming import packaged_names
from dear.data.sources.readers import READERS, Source
from dear.data.sources.splits import PREFIX, read_coop, recorded_split, split_file
from dear.errors import DataError

SHARES = {"train": 0.5, "val": 0.2, "test": 0.3}
"""Shares of each class if a data set fixes no split, as in CoOp's own lists."""
VAL_SHARE = 0.2
"""Share of the training images if a data set only fixes training and test images, as in CoOp."""


@dataclass(frozen=True)
class Benchmark:
    """A row of benchmarks.json.

    Attributes:
        name: as in the file name of its split list and in records.
        title: as in the paper's tables.
        folder: its folder under the root; `images` is the folder of images in it.
        reader: its reader if there is no split list: a key of `dear.data.sources.readers.READERS`.
        template: its prompt (Table 4 of the supplement).
        classes: the number of classes.
        published: number of images in each split, from the CoOp paper.
        by_hand: what to download, and from where.
        download: how torchvision downloads it, or None: its class, the options of each call, and where the
            downloaded files go in the folder.
        ignored: folders that are not classes.
        names: the class-name file, if not its own; `wnids` is the file of folder names.
    """

    name: str
    title: str
    folder: str
    images: str
    reader: str
    template: str
    classes: int
    published: Mapping[str, int]
    by_hand: tuple[str, ...]
    download: Mapping[str, Any] | None
    ignored: tuple[str, ...] = ()
    names: str | None = None
    wnids: str | None = None


@cache
def benchmarks() -> Mapping[str, Benchmark]:
    """The rows by name, in the order of the file."""
    rows: dict[str, dict[str, Any]] = json.loads(files(__package__).joinpath("benchmarks.json").read_bytes())
    for row in rows.values():
        row |= {field: tuple(value) for field, value in row.items() if isinstance(value, list)}
    return {name: Benchmark(name=name, **row) for name, row in rows.items()}


def find_benchmark(name: str) -> Benchmark | None:
    """The benchmark with a name, title or folder, ignoring case and punctuation, or None."""
    plain = _plain(name)
    return next((b for b in benchmarks().values() if plain in map(_plain, (b.name, b.title, b.folder))), None)


def named_benchmark(name_or_path: str) -> Benchmark | None:
    """The same for what may also be a path, which is never a benchmark."""
    return None if any(sign in name_or_path for sign in "/\\") else find_benchmark(name_or_path)


def home_of(benchmark: Benchmark, settings: DataSettings) -> Path:
    """The folder of a benchmark under the root. Raises DataError if there is no root or no such folder."""
    root = settings.data_root()
    if root is None:
        raise DataError(
            f"{benchmark.name} needs the folder of the benchmarks: set the environment variable DEAR_DATA, "
            "or the option --root or --dataset.root that the command has (root in a recipe)."
        )
    home = root / benchmark.folder
    if not home.is_dir():
        raise DataError(
            f"{benchmark.name} is not in {home}. "
            f"Fetch it with `dear data get {benchmark.name} --root {quote(str(root))}`."
        )
    return home


def published_names(benchmark: Benchmark) -> tuple[str, ...]:
    """The class names of a benchmark in label order, as in CoOp's lists."""
    names, wnids = packaged_names(f"{benchmark.names or benchmark.name}.txt"), folder_names(benchmark)
    if wnids is None:
        return names
    by_wnid = dict(zip(packaged_names(f"{benchmark.names or benchmark.name}.wnids.txt"), names, strict=True))
    return tuple(by_wnid[wnid] for wnid in wnids)


def folder_names(benchmark: Benchmark) -> tuple[str, ...] | None:
    """The WordNet ids of the classes in label order, for ImageNet and variants with such folders, or None."""
    if not benchmark.reader.startswith("wnid"):
        return None
    return packaged_names(f"{benchmark.wnids or benchmark.names or benchmark.name}.wnids.txt")


def read_benchmark(
    benchmark: Benchmark, home: Path, settings: DataSettings, report: Report = refuse
) -> Listing:
    """Read a benchmark from its folder: by CoOp's split list if there is one, else by its own files.

    Raises DataError naming what is missing.
    """
    if split_file(home) is not None:
        listing = read_coop(home, report=report)
        if listing.name != benchmark.name:
            raise DataError(
                f"{home} is for {benchmark.name}, but its list is {PREFIX}{listing.name}.json: call it "
                f"{PREFIX}{benchmark.name}.json if it is the benchmark's, otherwise by a name of its own."
            )
    else:
        listing = _read_without_list(benchmark, home, settings)
    counts = {part: len(rows) for part, rows in listing.splits.items() if rows}
    standard = not listing.notes and counts == dict(benchmark.published)
    return replace(listing, templates=(benchmark.template,), benchmark=True, standard=standard)


def _read_without_list(benchmark: Benchmark, home: Path, settings: DataSettings) -> Listing:
    names, wnids = published_names(benchmark), folder_names(benchmark)
    source = Source(benchmark.name, home, home / benchmark.images, names, wnids, benchmark.ignored)
    classes = READERS[benchmark.reader](source)
    for row in chain.from_iterable(classes.splits.values()):
        require_path(benchmark.name, row.path)
        require_inside(benchmark.name, row.path)
    splits, origin, notes = classes.splits, classes.origin, classes.notes
    undivided = next((part for part in ("all", "trainval") if part in splits), None)
    if undivided is not None:
        shares = SHARES if undivided == "all" else {"train": 1 - VAL_SHARE, "val": VAL_SHARE}
        splits, seed, note = recorded_split(
            splits[undivided], shares, settings, classes.names, benchmark.name, splits.get("test")
        )
        notes = (*notes, f"{note}; published results use {PREFIX}{benchmark.name}.json")
        origin = f"{seed}, {origin}" if origin else seed
    names, keys = classes.names, classes.keys
    return Listing(benchmark.name, source.images, keys, names, splits, origin, notes=notes, numbered=True)


def _plain(name: str) -> str:
    return "".join(letter for letter in name.casefold() if letter.isalnum())
