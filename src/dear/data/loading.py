"""Load a data set by name or path: find its kind, read it, check its files."""

import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from dear.data.dataset import Dataset, Images, assemble
from dear.data.fewshot import Subset
from dear.data.image_check import contradictions, describe_leak, duplicate_warnings, name_groups
from dear.data.images.photos import HeldImages, LoadedImages, PhotoImages, place_of
from dear.data.names import FILES, missing_error, path_of
from dear.data.scan import scan
from dear.data.settings import DataSettings
from dear.data.sources import archive, huggingface, shards, table
from dear.data.sources.benchmarks import benchmarks, find_benchmark, home_of, named_benchmark, read_benchmark
from dear.data.sources.class_names import with_spaces
from dear.data.sources.corrections import correct
from dear.data.sources.folder import (
    enter_wrappers,
    ignored_note,
    image_files,
    no_classes,
    read_folder,
    shards_in,
    subfolders,
)
from dear.data.sources.frames import with_frames
from dear.data.sources.listing import (
    UNDIVIDED,
    DetailNote,
    Listing,
    describe_misuse,
    join_listings,
    name_classes,
    named_only,
    require_apart,
    single_class,
)
from dear.data.sources.objects import ReadImage, read_object, read_pairs
from dear.data.sources.splits import PREFIX, is_drawn, names_of_splits, read_coop, split_file
from dear.errors import DataError, Detail, warn
from dear.reading.files import CORRECTIONS, expanded, is_passed_over
from dear.reading.remote import Address
from dear.text import FEW, list_names, plural, without_surrogates
from dear.world.tasks import load_task, task_names


@shards.naming_archives
def load_dataset(
    name_or_path: Any, settings: DataSettings | None = None, *, names: Mapping[str, str] | None = None
) -> Dataset:
    """Load a task of the Attribute World, a benchmark, a folder of images, a CSV or JSONL file, a zip, tar or
    Parquet file, or a Hugging Face data set ("hf:NAME"); of a list of these the later ones are added to the
    first, but parts of one data set in tars or Parquet files are taken together. Objects are taken too:
    (images, labels), where images are paths, Pillow images, arrays, tensors or bytes; a data frame with
    columns path and label; a data set of the library datasets; torchvision's ImageFolder. ``names`` are those
    of classes by their folders or labels, as an earlier bundle has them; a file of names in the settings
    counts before them.

    Remarks for the user are in the data set's notes and are also issued as warnings. Raises UnknownNameError
    for an unknown name, DataError for a path that does not exist or whose content is invalid.
    """
    settings, tasks = settings or DataSettings(), task_names()
    if is_several(name_or_path):
        return build_dataset(read_listing([*map(str, name_or_path)], settings, names=names), settings)
    if not isinstance(name_or_path, str | Path):
        listing, read = read_object(name_or_path, settings)
        listing = with_frames(listing, settings) if read is None else listing
        return build_dataset(name_listings([listing], settings, names), settings, read)
    name_or_path = str(name_or_path)
    if name_or_path in tasks:
        task = load_task(name_or_path)
        facts = task.name, task.title, task.classnames, settings.templates() or (task.template,)
        return assemble(*facts, task.train, task.val, task.test, settings, world=True)
    return build_dataset(read_listing(name_or_path, settings, other_names=tasks, names=names), settings)


def as_dataset(data: Any, settings: DataSettings, *, names: Mapping[str, str] | None = None) -> Dataset:
    """A data set itself, or `load_dataset` of anything else."""
    return data if isinstance(data, Dataset) else load_dataset(data, settings, names=names)


def is_several(data: Any) -> bool:
    """Whether this is a list of names and paths of data sets."""
    return (
        isinstance(data, list | tuple)
        and bool(data)
        and all(isinstance(source, str | Path) for source in data)
    )


def load_for_training(
    images: Sequence[Any], labels: Sequence[str], classnames: Sequence[str], settings: DataSettings
) -> Dataset:
    """The data set of images with the names of their classes: all are to train on, none to test on."""
    listing, read = read_pairs(images, labels, keys=classnames)
    listing = replace(listing, splits={"train": listing.splits[UNDIVIDED], "test": ()}, notes=())
    return build_dataset(name_listings([listing], settings), settings, read)


def of_world(names: Iterable[str]) -> bool:
    """Whether all data sets with these names are tasks of the Attribute World."""
    return {*names} <= {*task_names()}


def load_images(name_or_path: str, settings: DataSettings | None = None) -> Dataset:
    """`load_dataset` for a use without labels: a folder may also have images without folders of classes. They
    are then all training images, and there are no class names.
    """
    settings, folder = settings or DataSettings(), path_of(name_or_path)
    has_classes = not folder.is_dir() or subfolders(folder) or split_file(folder)
    if has_classes or name_or_path in task_names() or named_benchmark(name_or_path):
        return load_dataset(name_or_path, settings)
    photos, name = load_unlabeled(image_files(folder, settings.frames), settings), folder.resolve().name
    return assemble(name, name, (), (), photos, None, Subset(photos, torch.empty(0, dtype=torch.int64)))


def load_unlabeled(images: Sequence[Any], settings: DataSettings) -> Images:
    """Images without labels: files, or objects of any form that `load_dataset` takes."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*single class")
        return load_for_training(images, ["unlabeled"] * len(images), ["unlabeled"], settings).train


def read_listing(
    sources: str | Sequence[str],
    settings: DataSettings,
    *,
    other_names: Iterable[str] = (),
    names: Mapping[str, str] | None = None,
) -> Listing:
    """Read the lists of a benchmark (by name), a folder, a table or an archive; no image is decoded.
    Of several the later ones are added to the first. ``names`` are as in `load_dataset`.

    Raises UnknownNameError for any other name (its message lists `other_names` too), DataError for invalid
    content. Faults may be collected instead (`collected_faults`).
    """
    sources = [sources] if isinstance(sources, str) else sources
    if len(sources) > 1 and (parts := shards.find_shards(sources)):  # a shell has spelled out their pattern
        listings = [_read_files(parts, settings)]
    else:
        listings = [read_source(source, settings, other_names) for source in sources]
    for listing in listings:
        if not listing.keys:
            raise no_classes(listing.folder)
    return name_listings(listings, settings, names)


def name_listings(
    listings: Sequence[Listing], settings: DataSettings, names: Mapping[str, str] | None = None
) -> Listing:
    """One listing with the names and templates of the settings, its splits and class names checked."""
    for number, listing in enumerate(listings := [*listings]):
        require_apart(listing)
        name = without_surrogates(listing.name)  # of a folder: it is written into files
        # A benchmark's settings and results are not for other data that bears its name.
        own = "own-" if not listing.benchmark and find_benchmark(name) else ""
        listings[number] = replace(listing, name=f"{own}{name}")
    file = settings.classnames and expanded(settings.classnames)
    listings = name_classes(listings, file, names or {})
    listing = listings[0] if len(listings) == 1 else join_listings(listings)
    templates = settings.templates()
    return listing if templates is None else replace(listing, templates=templates)


def build_dataset(listing: Listing, settings: DataSettings, read: ReadImage | None = None) -> Dataset:
    """The data set of a listing, after checking that every file exists; ``read`` gives images that are not
    files, each of which is read. Notes are also issued as warnings.

    Raises DataError for missing or empty files, and as `scan`.
    """
    decoded = settings.broken == "skip" or is_drawn(listing, settings)
    # ImageNet is 140 GB: of benchmarks, names and sizes count.
    scanned = scan(listing, settings, read, decoded=decoded, hashed=decoded or not listing.benchmark)
    listing, contents = scanned.listing, {} if listing.benchmark else scanned.contents
    listing = replace(listing, notes=(*listing.notes, *named_only(listing), *describe_misuse(listing)))
    for note in listing.notes:
        warn(f"{listing.name}: {note}", Detail if isinstance(note, DetailNote) else UserWarning)
    if len(listing.keys) == 1:
        warn(f"{listing.name}: {single_class(listing)}")
    groups, photos = name_groups(scanned.groups, contents), dict[str, LoadedImages]()
    for part, rows in listing.splits.items():
        short_side = None if part == "test" else settings.short_side
        if read is None:
            photos[part] = PhotoImages(
                listing.folder, rows, short_side, threads=settings.threads,
                hashes=scanned.contents, is_published=listing.benchmark,
            )  # fmt: skip
        else:
            photos[part] = HeldImages(rows, read, short_side, settings.threads, scanned.objects)
        photos[part].groups = [groups.get(row.path, "") for row in rows]
        if rows and all(row.path in scanned.thumbnails for row in rows):
            photos[part].thumbnails = torch.stack([scanned.thumbnails[row.path] for row in rows])
    # Images in memory are called by their indices.
    named = scanned if read is None else scanned.rename(place_of)
    copies, contradiction = [] if listing.benchmark else named.copies, ""
    for repeated in [*duplicate_warnings(named.listing, copies), *describe_leak(named.listing, named.groups)]:
        warn(f"{listing.name}: {repeated}")
    if lines := contradictions(named.listing, copies):
        has = "has" if len(lines) == 1 else "have"
        contradiction = (
            f"{plural(len(lines), 'picture')} {has} several labels: {list_names(lines, FEW)}. Leave one "
            "copy of each, or give all its copies one label"
        )
        remedy = "; `dear data check` names all, `dear review --serve` corrects them."
        contradiction += "." if read else remedy
        warn(f"{listing.name}: {contradiction}")
    return assemble(
        listing.name,
        benchmarks()[listing.name].title if listing.benchmark else listing.name,
        [with_spaces(name) for name in listing.classnames],
        listing.templates,
        photos["train"],
        photos.get("val"),
        photos["test"],
        settings,
        notes=listing.notes,
        keys=listing.keys,
        benchmark=listing.benchmark,
        contradiction=contradiction,
    )


@contextmanager
def deferred_warnings() -> Iterator[list[warnings.WarningMessage]]:
    """Hold warnings, such as the notes on data sets, until the block ends, and yield the list of them.

    Each is issued once. An error in the block drops them, so that the user sees the error alone.
    """
    with warnings.catch_warnings(record=True) as notes:
        yield notes
    for note in {str(note.message): note for note in notes}.values():
        warnings.showwarning(note.message, note.category, note.filename, note.lineno)


@shards.naming_archives
def read_source(name_or_path: str, settings: DataSettings, other_names: Iterable[str] = ()) -> Listing:
    """The lists of a data set with its corrections, its classes not yet named. Raises as `read_listing`."""
    if name_or_path.startswith(huggingface.PREFIX):
        return huggingface.read_huggingface(name_or_path.removeprefix(huggingface.PREFIX), settings)
    path = path_of(name_or_path)
    if benchmark := named_benchmark(name_or_path):
        try:
            return read_benchmark(benchmark, home_of(benchmark, settings))
        except DataError as error:
            if not path.exists():
                raise
            hint = f"For what is called {path} in this folder, write ./{path}."
            raise DataError(f"{error} {hint}") from error
    if shards.is_pattern(name_or_path):
        return _read_files(shards.find_shards(name_or_path), settings)
    if not path.exists():
        raise missing_error(name_or_path, other_names)
    if path.is_dir():
        return _read_folder(path.listed() if isinstance(path, Address) else path, settings)
    if path.suffix.lower() not in FILES:
        raise DataError(
            f"{name_or_path} is not a supported file. Give a folder, or a file that ends in "
            f"{', '.join(FILES[:-1])} or {FILES[-1]}."
        )
    if path.name == CORRECTIONS:
        raise DataError(f"{path} is read with the data that it lies beside: give that alone.")
    return _read_files([path], settings)


def _read_folder(folder: Path, settings: DataSettings) -> Listing:
    """A folder, with the corrections in it."""
    return correct(with_frames(_read_content(folder, settings), settings), folder / CORRECTIONS, settings)


def _read_files(files: Sequence[Path], settings: DataSettings) -> Listing:
    """A table, or the archives of one data set, with the corrections beside them."""
    if files[0].suffix.lower() in table.SUFFIXES:
        listing = table.read_table(files[0], settings, is_named=True)
    else:
        listing = _read_archives(files, settings)
    return correct(with_frames(listing, settings), files[0].with_name(CORRECTIONS), settings)


def _read_content(folder: Path, settings: DataSettings) -> Listing:
    """The content of a folder decides what it is, not its name."""
    inner = folder if settings.layout == "classes" else enter_wrappers(folder)
    name = folder.resolve().name
    if inner != folder:
        listing = _read_folder(inner, settings)
        note = DetailNote(f"all of it is in {inner.relative_to(folder).as_posix()}/")
        return replace(
            listing, name=listing.name if listing.benchmark else name, notes=(note, *listing.notes)
        )
    if huggingface.is_saved(folder):
        return huggingface.read_huggingface(str(folder), settings)
    if split := split_file(folder):
        listed = find_benchmark(split.stem.removeprefix(PREFIX))
        return read_benchmark(listed, folder) if listed else read_coop(folder)
    if parts := shards_in(folder):
        return replace(_read_archives(parts, settings), name=name)
    tables, left_out = _find_tables(folder, settings)
    if not tables:
        listing = read_folder(folder, settings)
    elif (whole := tables.get("")) is None:
        listing = table.read_tables(folder, tables, settings)
    else:
        listing = replace(table.read_table(whole, settings), name=name)
        folders = subfolders(folder)
        if any(subfolders(folder / inside) for inside in folders) or len(folders) > 1:
            reason = f"its table {whole.name} says what its classes are, not its folders"
            hint = "--dataset.layout classes, or domains, reads these"
            listing = replace(listing, notes=(*listing.notes, f"{reason}; {hint}"))
    if left_out:
        listing = replace(listing, notes=(*listing.notes, f"left out: {list_names(left_out, FEW)}"))
    return listing


def _read_archives(files: Sequence[Path], settings: DataSettings) -> Listing:
    """A zip, or shards: as tables of images, or, without labels, as the folder that was packed."""
    if files[0].suffix.lower() in archive.SUFFIXES:
        folder, ignored = archive.unpack(files[0], settings.cache_folder())
        tables, name, notes = dict[str, Path](), files[0].stem, [*ignored_note(ignored)]
    else:
        folder = shards.unpack(files, settings)
        tables, name, notes = shards.tables_of(folder), shards.name_of(files), shards.notes_of(folder)
        folder = folder if tables or len(files) > 1 else folder / files[0].stem
    if not tables and notes and files[0].suffix.lower() == ".parquet":  # it has no folders
        raise DataError(f"{files[0]}: {notes[0]}.")
    if not tables:
        listing = _read_folder(folder, settings)
    elif "" in tables:
        listing = table.read_table(tables[""], settings)
    else:
        listing = table.read_tables(folder, tables, settings)
    return replace(listing, name=listing.name if listing.benchmark else name, notes=(*listing.notes, *notes))


def _find_tables(folder: Path, settings: DataSettings) -> tuple[dict[str, Path], list[str]]:
    """The tables that say what the classes of a folder are, by their splits, "" for one of all images; and
    what is left out: other tables, and folders of splits without one.

    It is the table that lists images of the folder, whatever folders are beside it, unless the layout says
    that these are meant. Of several each is called like a split, or lies in the folder of one. Raises
    DataError for others.
    """
    files, folders = _table_files(folder), subfolders(folder)
    may_be_classes = len(folders) > 1 or any(subfolders(folder / name) for name in folders)
    if len(files) == 1 and not may_be_classes:  # an error will tell of images that are not there
        is_meant = settings.layout == "auto" and table.names_images(files[0], settings)
        if is_meant or not folders:
            return {"": files[0]}, []
    tables = [file for file in files if table.lists_files(file, settings)]
    are_folders_meant = bool(folders) and settings.layout != "auto"
    left_out = [file.name for file in files if are_folders_meant or file not in tables]
    if not tables and settings.layout == "auto":
        tables_by_split, unlabeled = dict[str, Path](), list[str]()
        for split, part in names_of_splits(folders, folder).items():
            inside = [file for file in _table_files(folder / part) if table.lists_files(file, settings)]
            if len(inside) == 1:
                tables_by_split[split] = inside[0]
            elif subfolders(folder / part):
                return {}, left_out
            else:
                unlabeled.append(f"{part}/")
        return tables_by_split, left_out + unlabeled * bool(tables_by_split)
    if not tables or are_folders_meant:
        return {}, left_out
    if len(tables) == 1:
        return {"": tables[0]}, left_out
    stems = names_of_splits([file.stem for file in tables], folder)
    if len(stems) < len(tables):
        names = list_names((file.name for file in tables), FEW)
        raise DataError(
            f"{folder} has {len(tables)} tables of its images: {names}. "
            "Leave one, or call them train, val and test."
        )
    return {split: file for split, stem in stems.items() for file in tables if file.stem == stem}, left_out


def _table_files(folder: Path) -> list[Path]:
    files = sorted(folder.iterdir())
    return [file for file in files if file.suffix.lower() in table.SUFFIXES and not is_passed_over(file.name)]
