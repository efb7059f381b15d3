"""The published benchmarks in CoOp's folder layout: a table (benchmarks.json) and class-name files;
downloaded by torchvision, or a list of what to do by hand.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from pathlib import Path
from shlex import quote
from typing import Any
from uuid import uuid4

from dear.data.settings import DataSettings
from dear.data.sources.class_names import packaged_names
from dear.data.sources.folder import class_images, ignored_note
from dear.data.sources.listing import PARTS, Listing, Row
from dear.data.sources.splits import PREFIX, read_coop, split_file
from dear.errors import DataError, OutputError, first_line, of_the_disk
from dear.reading.files import ReadingError, is_passed_over, read_lines
from dear.writing import temporary_folder

READERS: Mapping[str, Mapping[str, str]] = {
    "wnid-folders": {"train": "train", "test": "val"},  # ImageNet's val is used for testing, as is usual
    "wnid-test-folders": {"test": ""},
    "numbered-folders": {"test": ""},
    "aircraft": {},
}
"""The readers in benchmarks.json, with the folder of each split."""


@dataclass(frozen=True)
class Benchmark:
    """A row of benchmarks.json.

    Attributes:
        name: as in the file name of its split list and in records.
        title: as in the paper's tables.
        folder: its folder under the root; `images` is the folder of images in it.
        reader: a key of `READERS`; None for a benchmark that is read by CoOp's split list.
        template: its prompt (Table 4 of the supplement).
        classes: the number of classes.
        published: number of images in each split, from the CoOp paper.
        by_hand: what to download, and from where.
        download: how torchvision downloads it, or None: its class, the options of each call, and where the
            downloaded files go in the folder.
        names: the class-name file, if not its own; `wnids` is the file of folder names.
    """

    name: str
    title: str
    folder: str
    images: str
    template: str
    classes: int
    published: Mapping[str, int]
    by_hand: tuple[str, ...]
    download: Mapping[str, Any] | None
    reader: str | None = None
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


def standard_name(data_set: str) -> str:
    """The name of a benchmark that has several; any other name as it is."""
    benchmark = named_benchmark(data_set)
    return data_set if benchmark is None else benchmark.name


class NoRootError(DataError):
    """The folder of the benchmarks is not known.

    Attributes:
        names: The benchmarks that need it.
    """

    def __init__(self, *names: str) -> None:
        self.names = names
        super().__init__(
            f"{', '.join(names)} {'needs' if len(names) == 1 else 'need'} the folder of the benchmarks: set "
            "the environment variable DEAR_DATA, or the option --root or --dataset.root that the command has "
            "(root in a recipe)."
        )


def home_of(benchmark: Benchmark, settings: DataSettings) -> Path:
    """The folder of a benchmark under the root. Raises DataError if there is no root or no such folder."""
    root = settings.data_root()
    if root is None:
        raise NoRootError(benchmark.name)
    home = root / benchmark.folder
    if not home.is_dir():
        get = f"`dear data get {benchmark.name} --root {quote(str(root))}`"
        how = f"{get} says where to get it" if benchmark.download is None else f"Fetch it with {get}"
        raise DataError(f"{benchmark.name} is not in {home}. {how}.")
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
    if not (benchmark.reader or "").startswith("wnid"):
        return None
    return packaged_names(f"{benchmark.wnids or benchmark.names or benchmark.name}.wnids.txt")


@dataclass(frozen=True)
class Fetched:
    """The files that were downloaded, and what remains to be done by hand.

    Attributes:
        fetched: new files and folders in the folder.
        by_hand: what torchvision does not download, one line each.
        why: why nothing was downloaded, or None.
    """

    name: str
    folder: str
    fetched: list[str]
    by_hand: list[str]
    why: str | None


def fetch(benchmark: Benchmark, root: Path) -> Fetched:
    """Download a benchmark into its folder under the root, completely or not at all; existing files are kept.

    A host that does not answer is not an error: the result lists what to do by hand. Raises OutputError if
    the root cannot be written.
    """
    home = root / benchmark.folder
    fetched, why = [], None
    had_images = (home / benchmark.images).is_dir() and benchmark.images != "."
    if had_images:
        why = f"{home / benchmark.images} already exists"
    elif benchmark.download is None:
        why = "torchvision does not download it"
    else:
        try:
            home.mkdir(parents=True, exist_ok=True)
            fetched = _download(benchmark.download, home)
        except Exception as error:  # the hosts' errors share no exception class
            if isinstance(error, OSError) and (error.filename is not None or of_the_disk(error)):
                raise OutputError(f"cannot write to {home}: {error}. Choose another --root.") from error
            why = f"the download failed ({first_line(error)})"
        if not fetched and home.is_dir() and not any(home.iterdir()):
            home.rmdir()
    has_split_list = home.is_dir() and split_file(home) is not None
    has_images = bool(fetched) or had_images
    by_hand = [line for line in benchmark.by_hand if not (has_split_list if PREFIX in line else has_images)]
    return Fetched(benchmark.name, str(home), fetched, by_hand, why)


def _download(how: Mapping[str, Any], home: Path) -> list[str]:
    """Let torchvision download into a temporary folder, then move the files of the layout."""
    import torchvision.datasets

    with temporary_folder(home / f".download-{uuid4().hex}") as part:
        part.mkdir(mode=0o700)
        for options in how["options"]:
            getattr(torchvision.datasets, how["dataset"])(str(part), download=True, **options)
        return _move(part, home, how["moves"])


def _move(part: Path, home: Path, moves: Sequence[Sequence[str]]) -> list[str]:
    sources = {source: sorted(part.glob(source)) for source, _ in moves}
    if missing := [source for source, paths in sources.items() if not paths]:
        raise DataError(f"torchvision's download has no {missing[0]}")
    moved = []
    for source, target in moves:
        for path in sources[source]:
            destination = home / (path.name if target == "." else target)
            if not destination.exists():
                path.rename(destination)
                moved.append(destination.name)
    return moved


def read_benchmark(benchmark: Benchmark, home: Path) -> Listing:
    """Read a benchmark from its folder: by CoOp's split list if there is one, else by its own files.

    Raises DataError naming what is missing.
    """
    if split_file(home) is not None:
        listing = read_coop(home)
        if listing.name != benchmark.name:
            raise DataError(
                f"{home} is for {benchmark.name}, but its list is {PREFIX}{listing.name}.json: call it "
                f"{PREFIX}{benchmark.name}.json if it is the benchmark's, otherwise by a name of its own."
            )
    else:
        listing = _read_without_list(benchmark, home)
    counts = {part: len(rows) for part, rows in listing.splits.items() if rows}
    standard = not listing.notes and counts == dict(benchmark.published)
    return replace(listing, templates=(benchmark.template,), benchmark=True, standard=standard)


def _read_without_list(benchmark: Benchmark, home: Path) -> Listing:
    """A benchmark for which CoOp has no split list, by its own files."""
    images = home / benchmark.images
    remedy = f"`dear data get {benchmark.name}` says what to do."
    if benchmark.reader is None:
        raise DataError(f"{home} has no split list {PREFIX}{benchmark.name}.json. {remedy}")
    if not images.is_dir():
        raise DataError(f"{benchmark.name} has no folder {images}. {remedy}")
    try:
        if benchmark.reader == "aircraft":
            return _read_aircraft(benchmark, home)
        return _read_class_folders(benchmark, home, READERS[benchmark.reader])
    except ReadingError as error:
        raise DataError(f"{benchmark.name}: {error} {remedy}") from error


def _read_class_folders(benchmark: Benchmark, home: Path, parts: Mapping[str, str]) -> Listing:
    """Folders of classes, called by WordNet ids or labels, in the folder of each split below that of the
    images.
    """
    images, names, wnids = home / benchmark.images, published_names(benchmark), folder_names(benchmark)
    keys = wnids or tuple(map(str, range(len(names))))
    splits, ignored = dict[str, tuple[Row, ...]](train=()), list[str]()
    for split, part in parts.items():
        if missing := [key for key in keys if not (images / part / key).is_dir()]:
            raise DataError(
                f"{images / part} lacks {len(missing)} of the {len(keys)} folders of {benchmark.name}; "
                f"the first is {missing[0]}."
            )
        rows, files = class_images(images, part, keys)
        splits[split] = tuple(rows)
        ignored += [file for file in files if file != "README.txt" and not is_passed_over(Path(file).name)]
    origin = ", ".join(f"{part}/" for part in parts.values() if part) or "all to test on"
    notes = ignored_note(ignored)
    return Listing(benchmark.name, images, keys, names, splits, origin, notes=notes, numbered=True)


def _read_aircraft(benchmark: Benchmark, home: Path) -> Listing:
    """FGVCAircraft: images_variant_<split>.txt, lines of image and class name; variants.txt orders them."""
    keys = tuple(line.strip() for line in read_lines(home / "variants.txt") if line.strip())
    labels, splits = {key: label for label, key in enumerate(keys)}, dict[str, tuple[Row, ...]]()
    for part in PARTS:
        file = home / f"images_variant_{part}.txt"
        words = [line.strip().partition(" ") for line in read_lines(file) if line.strip()]
        if other := next((name for _, _, name in words if name not in labels), None):
            raise DataError(f"{file}: variants.txt has no class {other!r:.80}.")
        splits[part] = tuple(Row(f"{image}.jpg", labels[name]) for image, _, name in words)
    names, images, origin = published_names(benchmark), home / benchmark.images, "images_variant_*.txt"
    if len(names) != len(keys):
        raise DataError(f"{home / 'variants.txt'} has {len(keys)} classes, {benchmark.name} {len(names)}.")
    return Listing(benchmark.name, images, keys, names, splits, origin, numbered=True)


def _plain(name: str) -> str:
    return "".join(letter for letter in name.casefold() if letter.isalnum())
