"""Data sets in archives: zips, tars and Parquet files, one or several that are parts of one data set
("shards"). They are unpacked once into the cache folder, with a table of their labels.
"""

import json
import os
import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from functools import wraps
from itertools import product, takewhile
from pathlib import Path
from typing import IO, Any, TypeVar, cast

from dear.data.settings import DataSettings
from dear.data.sources import archive, table
from dear.data.sources.folder import SHARDS, enter_wrappers, image_files, shards_in
from dear.data.sources.parquet import read_parquet
from dear.data.sources.splits import split_of
from dear.data.sources.tar import LISTS, Sample, read_tar
from dear.errors import DataError, DearError, rename_in_faults
from dear.reading.files import expanded, is_file, is_folder
from dear.reading.remote import Address, as_path, is_address
from dear.text import FEW, list_names

PATTERN = re.compile(r"\{(\d+)\.\.(\d+)\}")
"""Numbers of shards, as in train-{000..009}.tar."""
TABLE, NOTES = "samples.jsonl", "notes.json"
"""What is beside the images in the cache folder; the tables of several splits are called by these."""
RESERVED = table.COLUMNS_READ
"""Columns that a table of images has a meaning for: ours alone are written."""

Reader = TypeVar("Reader", bound=Callable[..., Any])


def find_shards(sources: str | Path | Sequence[str | Path]) -> list[Path]:
    """The tars and Parquet files that are one data set: a file, a pattern of several, several of them, or
    those in a folder, in a folder of it, or in folders of splits. Empty for any other source.
    """
    sources = [sources] if isinstance(sources, str | Path) else sources
    files = [expanded(source) for source in sources if Path(source).suffix.lower() in SHARDS]
    if files and len(files) == len(sources) and not any(map(is_folder, files)):
        return [shard for file in files for shard in _expand(file)]
    return _in_folder(expanded(sources[0])) if len(sources) == 1 else []


def is_pattern(name: str) -> bool:
    """True for a pattern of several shards, unless a file is called so."""
    path = Path(name)
    return path.suffix.lower() in SHARDS and bool(PATTERN.search(path.name)) and not is_file(expanded(name))


def _expand(path: Path) -> list[Path]:
    """The files of a pattern; a file that is called so is itself."""
    if not is_pattern(str(path)):
        return [path]
    parts = re.split(r"(\{\d+\.\.\d+\})", str(path))
    choices = list[list[str]]()
    for part in parts:
        if match := PATTERN.fullmatch(part):
            first, last = match.groups()
            choices.append([f"{number:0{len(first)}}" for number in range(int(first), int(last) + 1)])
        else:
            choices.append([part])
    return [as_path("".join(chosen)) for chosen in product(*choices)]


def _in_folder(folder: Path) -> list[Path]:
    """The shards of a folder."""
    if not is_folder(folder):
        return []
    inner = enter_wrappers(folder.listed() if isinstance(folder, Address) else folder)
    return shards_in(inner)


def name_of(shards: Sequence[Path]) -> str:
    """The name of a data set of shards: what their names begin with."""
    stems = [shard.stem for shard in shards]
    if len(stems) == 1:
        return stems[0]
    letters = zip(*stems)  # noqa: B905 (up to the shortest)
    common = "".join(each[0] for each in takewhile(lambda each: len({*each}) == 1, letters))
    return re.sub(r"[\d._-]+$", "", common) or shards[0].parent.name or stems[0]


def unpack(shards: Sequence[Path], settings: DataSettings) -> Path:
    """Unpack shards, unless it was done already, into one folder: the images, a table of those that have
    labels (of each split, if the names of the shards say several), and notes.

    Raises DataError for a shard that is missing or damaged, has a member outside its folder, or is given
    twice; LimitError for one that unpacks to many times its size; OutputError if the cache cannot be written.
    """
    for shard in shards:
        if not shard.exists():
            raise DataError(f"{shard} does not exist. Check the path of the data set.")
    target = _folder_of(shards, settings)
    if not target.is_dir():
        with archive.cached_folder(target) as part:
            _unpack_into(part, shards, settings)
    return target


def unpack_source(path: Path, settings: DataSettings) -> tuple[Path, list[Path]] | None:
    """The folder into which an archive, or the shards that a path names, are unpacked, and the folders in it
    that have all images; None for a path of something else. Raises as `unpack`.
    """
    if path.suffix.lower() in archive.SUFFIXES and not is_folder(path):
        folder = archive.unpack(path, settings.cache_folder())[0]
        return folder, [folder]
    shards = find_shards(path)
    if not shards:
        return None
    folder = unpack(shards, settings)
    return folder, [folder / place for place in _places(shards)]


def is_packed(path: str | os.PathLike[str]) -> bool:
    """True for the name of a zip, a tar or a Parquet file."""
    return os.fspath(path).lower().endswith((*archive.SUFFIXES, *SHARDS))


def is_collection(path: str | os.PathLike[str]) -> bool:
    """True for a folder, and for the name of an archive or a table: what `find_images` takes apart."""
    return is_folder(path) or is_packed(path) or table.is_table(path)


def find_images(source: str | Path, settings: DataSettings) -> list[Path]:
    """The images of a folder, of what is unpacked of an archive, or that a table lists, or the file itself,
    whatever their labels. Raises as `unpack` and `list_images`, and DataError for a folder without images and
    an archive that is not there.
    """
    path = expanded(source)
    if table.is_table(path):
        images = table.list_images(path, settings)
        return [file for image in images for file in image_files(image, settings.frames)]
    if is_packed(path) and not (is_pattern(str(path)) or path.exists()):
        raise DataError(f"{path} does not exist: check its path.")
    _, folders = unpack_source(path, settings) or (path, [path])
    return [file for folder in folders for file in image_files(folder, settings.frames)]


def tables_of(folder: Path) -> dict[str, Path]:
    """The tables of unpacked shards by their splits, "" for a single one."""
    names = {"": TABLE} | {split: f"{split}.jsonl" for split in ("train", "val", "test")}
    return {split: folder / name for split, name in names.items() if (folder / name).is_file()}


def notes_of(folder: Path) -> list[str]:
    """The notes of unpacked shards."""
    return [*map(str, json.loads((folder / NOTES).read_text(encoding="utf-8")))]


def _folder_of(shards: Sequence[Path], settings: DataSettings) -> Path:
    named = settings.named_columns
    return archive.folder_of(shards, settings.cache_folder(), *(named.get(kind, "") for kind in named))


def _unpack_into(part: Path, shards: Sequence[Path], settings: DataSettings) -> None:
    """Write the images of shards, their tables and the notes."""
    places, splits = _places(shards), _splits(shards)
    unlabeled, facts, labeled, length, written = list[str](), list[str](), Counter[str](), 0, 0
    with ExitStack() as stack:
        tables = {
            split: stack.enter_context((part / f"{split or 'samples'}.jsonl").open("w", encoding="utf-8"))
            for split in dict.fromkeys(splits)
        }
        for shard, place, split in zip(shards, places, splits, strict=True):
            (part / place).mkdir(parents=True, exist_ok=True)
            with archive.opened_whole(shard) as (content, size):
                length += size
                for sample in _samples(shard, content, size, settings):
                    path = (Path(place) / sample.path).as_posix()
                    (part / path).parent.mkdir(parents=True, exist_ok=True)
                    with (part / path).open("xb") as sink:
                        written += _copy(sample.content, sink)
                    archive.require_modest(written, length, shard)
                    label = _spell_label(f"{shard}, {sample.path!r:.250}", sample.label)
                    if label:
                        row = {"path": path, "label": label} | _plain_facts(sample)
                        tables[split].write(json.dumps(row) + "\n")
                        labeled[split] += 1
                    elif not path.lower().endswith(LISTS):
                        unlabeled.append(path)
                        facts = facts or [*sample.facts]
    named = [split for split in tables if labeled[split]]
    for split in tables.keys() - {*named}:
        (part / f"{split or 'samples'}.jsonl").unlink()
    if len(named) == 1 and named != [""]:
        (part / f"{named[0]}.jsonl").rename(part / TABLE)
    notes = list[str]()
    if unlabeled and named:
        verb = "image has" if len(unlabeled) == 1 else "images have"
        left = "is" if len(unlabeled) == 1 else "are"
        notes = [f"{len(unlabeled)} {verb} no label and {left} left out: {list_names(unlabeled, FEW)}"]
    elif unlabeled and facts:
        columns = f"it has {list_names(facts, 9)}"
        notes = [f"no labels: name their column with --dataset.columns label=COLUMN; {columns}"]
    (part / NOTES).write_text(json.dumps(notes), encoding="utf-8")


def _samples(shard: Path, content: Any, length: int, settings: DataSettings) -> Iterator[Sample]:
    named = settings.named_columns
    if shard.suffix.lower() == ".tar":
        return read_tar(shard, content, named.get("label"))
    return read_parquet(shard, content, length, named)


def _places(shards: Sequence[Path]) -> list[str]:
    """The folder of the images of each shard: its name, with that of its folder where names are the same."""
    stems = [shard.stem for shard in shards]
    if len({*stems}) < len(stems):
        stems = [f"{shard.parent.name}/{shard.stem}" for shard in shards]
    if repeated := [name for name, count in Counter(stems).items() if count > 1]:
        raise DataError(f"two shards are called {repeated[0]}: give each once, under a name of its own.")
    return stems


def _splits(shards: Sequence[Path]) -> list[str]:
    """The split that each shard is part of, by a word of its name or else by its folder; "" for all if these
    are of one. Raises DataError for a shard without a split beside others.
    """
    splits = list[str]()
    for shard in shards:
        words = {split_of(word) for word in re.split(r"[-_.]+", shard.stem)} - {None}
        if not words and len({other.parent for other in shards}) > 1:
            words = {split_of(shard.parent.name)}
        splits.append(words.pop() or "" if len(words) == 1 else "")
    if len({*splits}) == 1:
        return [""] * len(shards)
    if "" in splits:
        lone, other = splits.index(""), next(number for number, split in enumerate(splits) if split)
        raise DataError(
            f"{shards[lone]} is called like no split, but {shards[other].name} is: have train, val or test "
            "in the names of all, or give those of one split alone."
        )
    return splits


def _copy(source: IO[bytes], sink: IO[bytes]) -> int:
    shutil.copyfileobj(source, sink)
    return sink.tell()


def _spell_label(where: str, label: Any) -> str:
    """A label as text, "" for none. Raises DataError for what is no label."""
    if isinstance(label, float) and label.is_integer():
        label = int(label)
    if not isinstance(label, str | int | float | None):
        raise DataError(
            f"{where}: the label {label!r:.80} is not a text or a number: name another with "
            "--dataset.columns label=NAME."
        )
    text = "" if label is None else str(label).strip()
    if "\n" in text:
        raise DataError(f"{where}: the label {text!r:.80} has several lines: a label is the name of a class.")
    return text


def _plain_facts(sample: Sample) -> dict[str, Any]:
    """What is known of a sample as texts and numbers, by which images can be grouped."""
    return {
        name: value
        for name, value in sample.facts.items()
        if name.lower() not in RESERVED and isinstance(value, str | int | float) and value != ""
    }


def naming_archives(read: Reader) -> Reader:
    """A reader of one source or of several, and their settings, whose errors name an archive instead of the
    folder into which it was unpacked.
    """

    @wraps(read)
    def reader(source: Any, settings: DataSettings | None = None, *args: Any, **options: Any) -> Any:
        try:
            return read(source, settings, *args, **options)
        except DearError as error:
            for folder, name in _unpacked(source, settings or DataSettings()):
                error.args = tuple(str(argument).replace(folder, name) for argument in error.args)
            raise
        finally:
            for folder, name in _unpacked(source, settings or DataSettings()):
                rename_in_faults(folder, name)

    return cast(Reader, reader)


def _unpacked(source: Any, settings: DataSettings) -> Iterator[tuple[str, str]]:
    """The folders of the archives among the sources, and the names of these."""
    sources = source if isinstance(source, list | tuple) else [source]
    sources = [each for each in sources if isinstance(each, str | Path)]
    if len(sources) > 1:
        with suppress(OSError, DearError):
            if shards := find_shards(sources):
                yield str(_folder_of(shards, settings)), str(shards[0].parent)
                return
    for name in sources:
        with suppress(OSError, DearError):
            if Path(name).suffix.lower() in archive.SUFFIXES:
                zipped = expanded(name)
                yield str(archive.folder_of([zipped], settings.cache_folder())), str(zipped)
            elif (not is_address(name) or Path(name).suffix) and (shards := find_shards(name)):
                yield str(_folder_of(shards, settings)), str(expanded(name))
