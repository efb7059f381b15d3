"""An image folder: one folder per class, in train/ and test/, by domain, or without either."""

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from shlex import quote

from dear.data.images.raster import SUFFIXES
from dear.data.settings import DataSettings
from dear.data.sources.listing import (
    Listing,
    Report,
    Row,
    first_few,
    refuse,
    require_keys,
    sort_names,
)
from dear.data.sources.split_names import names_of_splits, split_of
from dear.data.sources.splits import PREFIX, make_split
from dear.data.sources.table import SUFFIXES as TABLES
from dear.data.sources.table import lists_images
from dear.errors import DataError, compose, warn

NOT_DATA = frozenset(["__MACOSX", "__pycache__"])
"""Folders that programs leave behind."""
HEIC = (".heic", ".heif")
LISTS = ("dataset_dict.json", "state.json")
"""Files of a Hugging Face data set that save_to_disk wrote."""
SHARED = 0.5  # a domain has more than this share of all classes


def read_folder(folder: Path, settings: DataSettings, report: Report = refuse) -> Listing:
    """Read a folder of images: of classes, of splits, or of domains, whose images are then taken together.

    Raises DataError if there is no class, a class without images to train on, or a folder beside those of
    splits that holds classes of theirs.
    """
    names = subfolders(folder)
    splits = dict[str, Path]()
    if settings.layout != "classes":
        named = names_of_splits(names, folder)
        splits = {split: _entered(folder / name, split) for split, name in named.items()}
        if len(splits) < len(names) and not any(map(subfolders, splits.values())):
            splits = {}  # classes that are called so, beside others
    if "train" in splits and len(splits) > 1:
        return _with_splits(folder, splits, settings, report)
    if len(splits) == len(names) == 1 and subfolders(split_folder := folder / names[0]):
        return _only_split(folder, split_folder, settings, report)
    if len(splits) == len(names) > 1:
        raise DataError(f"{folder} has no train folder beside {first_few(names)}: give one of them alone.")
    for split_folder in splits.values():
        _require_no_other_split(folder, split_folder, names)
    domains = {"auto": domains_of(folder), "classes": (), "domains": tuple(names)}
    return _without_splits(folder, domains[settings.layout], settings, report)


def _entered(split_folder: Path, split: str) -> Path:
    """The folder of a split, or the only one in it if that is called so too: training_set/training_set."""
    while len(names := subfolders(split_folder)) == 1 and split_of(names[0]) == split:
        split_folder /= names[0]
    return split_folder


def _require_no_other_split(folder: Path, split_folder: Path, names: Sequence[str]) -> None:
    """Raise DataError for a folder that holds classes of a split, such as holdout/ beside train/: its name
    and that of the split would be taken for classes.
    """
    classes = {*subfolders(split_folder)}
    for name in names:
        if name != split_folder.name and classes.intersection(subfolders(folder / name)):
            raise DataError(
                f"{folder}: {name}/ holds classes of {split_folder.name}/, but is not called like a split: "
                "rename it to train, val or test, or move it. If both are classes, give --dataset.layout "
                "classes."
            )


def domains_of(folder: Path) -> tuple[str, ...]:
    """The domains in a folder, sorted; empty if its folders look like classes. [ours]

    They are domains if there are at least two, all with at least two folders, most of which they share, and
    without images beside them. Folders called train, val or test are splits, never domains or classes. Raises
    DataError for a folder that cannot be read.
    """
    classes_by_domain = dict[str, set[str]]()
    for domain in subfolders(folder):
        classes = {*map(compose, subfolders(folder / domain))}
        has_splits = any(map(split_of, (domain, *classes)))
        if has_splits or len(classes) < 2 or _has_images(folder / domain):  # the first class ends the search
            return ()
        classes_by_domain[domain] = classes
    all_classes = set[str]().union(*classes_by_domain.values())
    alike = all(len(classes) > SHARED * len(all_classes) for classes in classes_by_domain.values())
    return tuple(classes_by_domain) if len(classes_by_domain) > 1 and alike else ()


def subfolders(folder: Path) -> list[str]:
    """Sorted names of the folders in a folder, without hidden ones. Raises DataError if it cannot be read."""
    return sort_names(
        entry.name for entry in _entries(folder) if os.path.isdir(entry) and entry.name not in NOT_DATA
    )


def list_classes(folder: Path) -> list[str]:
    """The names of the folders of classes in a folder, in Unicode's composed form. Raises DataError for two
    that differ in their form alone.
    """
    names = [*map(compose, subfolders(folder))]
    require_keys(str(folder), names)
    return names


def enter_wrappers(folder: Path) -> Path:
    """The folder itself or, if it has a single subfolder that holds the data set, and beside it only files
    that say nothing of the images, such as README.txt, that subfolder. One called like a split is not
    entered: its name says what it is for.
    """
    while True:
        entries = [*_entries(folder)]
        folders = [*filter(os.path.isdir, entries)]
        if len(folders) != 1 or split_of(folders[0].name):
            return folder
        inner = folder / folders[0].name
        holds_folders = bool(subfolders(inner))
        if not holds_folders and not any(_is_list(Path(entry)) for entry in _entries(inner)):
            return folder
        if any(_is_list(Path(entry)) or (_is_image(entry) and not holds_folders) for entry in entries):
            return folder
        folder = inner


def _is_list(path: Path) -> bool:
    """True for a table or a split list, and for the lists of a saved Hugging Face data set."""
    if path.suffix.lower() in TABLES:
        return path.is_file() and lists_images(path)
    return path.name.startswith(PREFIX) or path.name in LISTS


def class_images(
    folder: Path, parent: str, classes: Sequence[str], report: Report = refuse
) -> tuple[list[Row], list[str]]:
    """The images of `folder/parent/class/...` in the order of classes and paths, and the files that are none.

    A class without images is reported.
    """
    rows: list[Row] = []
    ignored: list[str] = []
    stored = {compose(name): name for name in subfolders(folder / parent)}
    for label, name in enumerate(classes):
        class_folder = folder / parent / stored.get(name, name)
        files = _files(class_folder) if class_folder.is_dir() else []
        images = [file for file in files if file.suffix.lower() in SUFFIXES]
        if not images:
            unread = "".join(f" {note}." for note in _heic_note([file.name for file in files]))
            report(DataError(f"the class {name!r} has no images in {class_folder}.{unread}"))
        rows += [Row(file.relative_to(folder).as_posix(), label) for file in images]
        ignored += [
            file.relative_to(folder).as_posix() for file in files if file.suffix.lower() not in SUFFIXES
        ]
    return rows, ignored


def image_files(path: Path) -> list[Path]:
    """The file itself, or all images below a folder, sorted by path. A warning tells what else is there.

    Raises DataError for a folder without images.
    """
    if not path.is_dir():
        return [path]
    files = _files(path)
    images = [file for file in files if file.suffix.lower() in SUFFIXES]
    if not images:
        raise DataError(f"the folder {path} has no files with an image suffix: choose another one.")
    others = [file.relative_to(path).as_posix() for file in files if file.suffix.lower() not in SUFFIXES]
    for note in ignored_note(others):
        warn(f"{path}: {note}")
    return images


def loose_note(folder: Path, beside: Sequence[str]) -> tuple[str, ...]:
    """A note on images that lie beside the folders of classes, in no class, if there are any; ``beside`` are
    the folders, within ``folder``, that hold those of classes.
    """
    images = [
        Path(parent, entry.name).as_posix()
        for parent in beside
        for entry in _entries(folder / parent)
        if _is_image(entry)
    ]
    lie, are = ("image lies", "is") if len(images) == 1 else ("images lie", "are")
    note = (
        f"{len(images)} {lie} beside the folders of classes and {are} left out: {first_few(sorted(images))}"
    )
    return (note,) if images else ()


def ignored_note(files: Sequence[str]) -> tuple[str, ...]:
    """Notes on files that are not read: photos in HEIC, and files without an image suffix."""
    others = [file for file in files if not file.lower().endswith(HEIC)]
    has, left = ("file has", "is left") if len(others) == 1 else ("files have", "are left")
    note = f"{len(others)} {has} no image suffix and {left} out: {first_few(others)}"
    return (*_heic_note(files), *([note] if others else []))


def _heic_note(files: Sequence[str]) -> tuple[str, ...]:
    photos = [file for file in files if file.lower().endswith(HEIC)]
    are = "photo in HEIC is" if len(photos) == 1 else "photos in HEIC are"
    note = f"{len(photos)} {are} not read: {first_few(photos)}; pip install pillow-heif"
    return (note,) if photos else ()


def _without_splits(folder: Path, domains: Sequence[str], settings: DataSettings, report: Report) -> Listing:
    """A folder of classes or of domains."""
    classes_by_domain = [list_classes(folder / domain) for domain in domains] or [list_classes(folder)]
    classes = sort_names({name for names in classes_by_domain for name in names})
    if not classes:
        raise DataError(
            f"{folder} has no folders of classes. Give a folder with one folder of images per class, "
            "with train/ and test/, a folder in CoOp's layout, a CSV or JSONL file, or a zip."
        )
    rows: list[Row] = []
    ignored: list[str] = []
    labels = {name: label for label, name in enumerate(classes)}
    for domain, names in zip(domains or [""], classes_by_domain, strict=True):
        images, files = class_images(folder, domain, names, report)
        rows += [Row(row.path, labels[names[row.label]]) for row in images]
        ignored += files
    split = make_split(rows, settings, classes, folder.resolve().name)
    notes = (
        *_domain_note(domains, rows, folder),
        *split.notes,
        *ignored_note(ignored),
        *loose_note(folder, domains or [""]),
    )
    return _listing(folder, classes, split.splits, split.origin, notes)


def _domain_note(domains: Sequence[str], rows: Sequence[Row], folder: Path) -> tuple[str, ...]:
    if not domains:
        return ()
    images = Counter(row.path.partition("/")[0] for row in rows)
    counts = ", ".join(f"{domain} ({images[domain]} images)" for domain in domains)
    return (
        f"its folders are read as domains of the same classes: {counts}; if they are classes, give "
        "--dataset.layout classes; to train on one domain and test on the others: dear run "
        f"domain-generalization --data {quote(str(folder))} --source {quote(domains[0])}",
    )


def _only_split(folder: Path, split: Path, settings: DataSettings, report: Report) -> Listing:
    """A folder with nothing but train/, which is split, or with nothing but test/ or val/."""
    tested = split_of(split.name) != "train"
    listing = _without_splits(split, (), replace(settings, test_share=1.0) if tested else settings, report)
    note = f"{folder} has only {split.name}/" + (": all its images are for testing" if tested else "")
    notes = (note, *listing.notes[tested:])  # the first says that there is no split
    return replace(listing, name=folder.resolve().name, notes=notes)


def _with_splits(
    folder: Path, split_folders: dict[str, Path], settings: DataSettings, report: Report
) -> Listing:
    tops = {path.relative_to(folder).parts[0] for path in split_folders.values()}
    others = [name for name in subfolders(folder) if name not in tops]
    notes = (f"its other folders are left out: {first_few(others)}",) if others else ()
    for split in ("val", "test"):
        if split in split_folders and not subfolders(split_folders[split]):
            # A competition's test images have no labels.
            path = split_folders.pop(split)
            notes = (*notes, f"{path.name}/ has no folders of classes and is left out")
    if split_folders.keys() == {"train"}:
        listing = _without_splits(split_folders["train"], (), settings, report)
        return replace(listing, name=folder.resolve().name, notes=(*notes, *listing.notes))
    if "test" not in split_folders:  # as ImageNet is distributed
        split_folders = {"train": split_folders["train"], "test": split_folders["val"]}
        notes = (*notes, f"it has no labelled test images: {split_folders['test'].name} is used for testing")
    classes = list_classes(split_folders["train"])
    if not classes:
        raise DataError(f"{split_folders['train']} has no folders of classes.")
    splits: dict[str, tuple[Row, ...]] = {}
    ignored: list[str] = []
    for split, split_folder in split_folders.items():
        for foreign in sorted({*list_classes(split_folder)} - {*classes}):
            report(DataError(f"{split_folder / foreign} is a class that is not in {split_folders['train']}."))
        empty = list[DataError]()  # a class need not have images to test on
        parent = split_folder.relative_to(folder).as_posix()
        rows, files = class_images(folder, parent, classes, report if split == "train" else empty.append)
        if not rows:
            raise DataError(f"{split_folder} has no images.")
        if empty:
            absent = {*range(len(classes))} - {row.label for row in rows}
            lacking = first_few(classes[label] for label in sorted(absent))
            notes = (*notes, f"{split_folder.name}/ has no images of {lacking}")
        splits[split] = tuple(rows)
        ignored += files
    parents = [split_folder.relative_to(folder).as_posix() for split_folder in split_folders.values()]
    notes = (*notes, *ignored_note(ignored), *loose_note(folder, ["", *parents]))
    origin = ", ".join(f"{parent}/" for parent in parents)
    return _listing(folder, classes, splits, origin, notes)


def _listing(
    folder: Path,
    classes: Sequence[str],
    splits: dict[str, tuple[Row, ...]],
    origin: str,
    notes: tuple[str, ...],
) -> Listing:
    names = tuple(classes)
    return Listing(folder.resolve().name, folder, names, names, splits, origin, notes=notes)


def _has_images(folder: Path) -> bool:
    return any(map(_is_image, _entries(folder)))


def _is_image(entry: os.DirEntry[str]) -> bool:
    return Path(entry.name).suffix.lower() in SUFFIXES and entry.is_file()


def _entries(folder: Path) -> Iterator[os.DirEntry[str]]:
    """What is in a folder, without hidden entries."""
    try:
        with os.scandir(folder) as entries:
            yield from (entry for entry in entries if not entry.name.startswith("."))
    except OSError as error:
        raise DataError(f"cannot read the folder {folder}: {error.strerror}.") from error


def _files(folder: Path) -> list[Path]:
    """All files below a folder, sorted by path, without hidden ones. A link to a folder is followed, unless
    it leads to what is read anyway.
    """

    def refuse_folder(error: OSError) -> None:
        raise DataError(f"cannot read the folder {error.filename}: {error.strerror}.") from error

    files: list[Path] = []
    top = os.path.join(os.path.realpath(folder), "")
    entered = set[str]()
    for parent, folders, names in os.walk(folder, onerror=refuse_folder, followlinks=True):
        links = [name for name in folders if os.path.islink(os.path.join(parent, name))]
        for name in links:
            target = os.path.join(os.path.realpath(os.path.join(parent, name)), "")
            if target in entered or target.startswith(top) or top.startswith(target):
                folders.remove(name)
            entered.add(target)
        folders[:] = [name for name in folders if not name.startswith(".")]
        files += [Path(parent, name) for name in names if not name.startswith(".")]
    return sorted(files, key=lambda file: ([*map(compose, file.parts)], file))
