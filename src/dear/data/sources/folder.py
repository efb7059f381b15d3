"""An image folder: one folder per class, in train/ and test/, by domain, or without either."""

import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from shlex import quote

from dear.data.images import video
from dear.data.images.decode import FORMATS, HEIC, SUFFIXES
from dear.data.settings import DataSettings
from dear.data.sources.class_names import sort_names
from dear.data.sources.listing import UNDIVIDED, UNLABELED, Listing, Row
from dear.data.sources.splits import PREFIX, names_of_splits, split_of
from dear.data.sources.table import SUFFIXES as TABLES
from dear.data.sources.table import lists_files
from dear.errors import DataError, fault, warn
from dear.reading.files import is_passed_over, walk_folders
from dear.reading.remote import Address, as_path
from dear.text import FEW, compose, list_names, plural

SAVED = ("dataset_dict.json", "state.json", "dataset_info.json")
"""Files of a Hugging Face data set that save_to_disk of its library wrote."""
UNREAD = (
    ".arw", ".avif", ".cr2", ".cr3", ".dcm", ".dds", ".dng", ".exr", ".fits", ".hdr", ".ico", ".jp2", ".jxl",
    ".nef", ".nii", ".npy", ".orf", ".psd", ".raw", ".rw2", ".svg", ".tga",
)  # fmt: skip
"""Suffixes of images that are not read; .avif only where Pillow cannot."""
SHARDS = (".tar", ".parquet")
"""Suffixes of files that hold images."""
PIECE = re.compile(r"(split|fold|part|batch|set|group|chunk|shard|session)[ _-]?\d+")
"""Folders that classes are divided into."""
SHARED = 0.5  # a domain has more than this share of all classes


def read_folder(folder: Path, settings: DataSettings) -> Listing:
    """Read a folder of images: of classes, of splits, or of domains, whose images are then taken together.

    Raises DataError if there is no class, a class without images to train on, or a folder beside those of
    splits that holds classes of theirs.
    """
    names, parts, videos = subfolders(folder), dict[str, str](), settings.frames is not None
    if settings.layout != "classes":
        named = names_of_splits(names, folder)
        parts = {split: _enter_split(folder, name, split) for split, name in named.items()}
        if len(parts) < len(names) and not any(subfolders(folder / part) for part in parts.values()):
            parts = {}  # classes that are called so, beside others
    if "train" in parts and len(parts) > 1:
        return _read_splits(folder, parts, videos=videos)
    if len(parts) == len(names) == 1 and subfolders(folder / names[0]):
        return _read_only_split(folder, names[0], videos=videos)
    if len(parts) == len(names) > 1:
        raise DataError(
            f"{folder} has no train folder beside {list_names(names, FEW)}: give one of them alone."
        )
    for part in parts.values():  # another folder of the same classes, such as holdout/
        for name in names:
            if name != part and {*subfolders(folder / part)} & {*subfolders(folder / name)}:
                raise DataError(
                    f"{folder}: {name}/ holds classes of {part}/, but is not called like a split: rename it "
                    "to train, val or test, or move it. If both are classes, give --dataset.layout classes."
                )
    domains = {"auto": domains_of(folder), "classes": (), "domains": tuple(names)}
    return _read_classes(folder, domains[settings.layout], videos=videos)


def _enter_split(folder: Path, part: str, split: str) -> str:
    """The folder of a split, or the only one in it if that is called so too: training_set/training_set."""
    while len(names := subfolders(folder / part)) == 1 and split_of(names[0]) == split:
        part = f"{part}/{names[0]}"
    return part


def domains_of(folder: Path) -> tuple[str, ...]:
    """The domains in a folder, sorted; empty if its folders look like classes. [ours]

    They are domains if there are at least two, all with at least two folders, most of which they share, and
    without images beside them, and not called split_1, part_2 and so on. Folders called train, val or test
    are splits, never domains or classes. Raises DataError for a folder that cannot be read.
    """
    classes_by_domain = dict[str, set[str]]()
    for domain in subfolders(folder):
        classes = {*map(compose, subfolders(folder / domain))}
        has_images = any(map(_is_image, _visible(folder / domain)))
        pieces = all(PIECE.fullmatch(name.lower()) for name in classes)
        if any(map(split_of, (domain, *classes))) or len(classes) < 2 or has_images or pieces:
            return ()  # the first class ends the search
        classes_by_domain[domain] = classes
    all_classes = set[str]().union(*classes_by_domain.values())
    alike = all(len(classes) > SHARED * len(all_classes) for classes in classes_by_domain.values())
    return tuple(classes_by_domain) if len(classes_by_domain) > 1 and alike else ()


def subfolders(folder: Path) -> list[str]:
    """Sorted names of the folders in a folder, but those that are passed over. Raises DataError if it cannot
    be read.
    """
    return sort_names(path.name for path in _visible(folder) if path.is_dir())


def _list_classes(folder: Path) -> list[str]:
    """The folders of classes in a folder, in Unicode's composed form. Two that differ in their form alone are
    a fault.
    """
    names = Counter(map(compose, subfolders(folder)))
    if twice := [name for name, count in names.items() if count > 1]:
        fault(DataError(f"{folder}: {twice[0]!r} is listed twice, in two forms of Unicode. Merge them."))
    return [*names]


def enter_wrappers(folder: Path) -> Path:
    """The folder itself or, if it has a single subfolder that holds the data set, and beside it only files
    that say nothing of the images, such as README.txt, that subfolder. One called like a split is not
    entered: its name says what it is for.
    """
    while len(names := subfolders(folder)) == 1 and not split_of(names[0]):
        files, inner = _visible(folder), _visible(folder / names[0])
        holds_folders = any(path.is_dir() for path in inner)
        is_whole = any(_is_list(path) or (_is_image(path) and not holds_folders) for path in files)
        if is_whole or not (holds_folders or any(map(_is_list, inner)) or shards_in(folder / names[0])):
            break
        folder /= names[0]
    return folder


def shards_in(folder: Path) -> list[Path]:
    """The files of a folder that hold images, or of its folders if all are called like splits; none where
    there are images or other folders too.
    """
    names = subfolders(folder)
    if not all(map(split_of, names)):
        return []
    shards = list[Path]()
    for place in [folder / name for name in names] or [folder]:
        entries = _visible(place)
        if any(_is_image(path) or path.is_dir() for path in entries):
            return []
        shards += sorted(path for path in entries if path.suffix.lower() in SHARDS)
    return shards


def _is_list(path: Path) -> bool:
    """True for a table or a split list, and for the lists of a saved Hugging Face data set."""
    if path.suffix.lower() in TABLES:
        return path.is_file() and lists_files(path)
    return path.name.startswith(PREFIX) or path.name in SAVED


def class_images(
    folder: Path, parent: str, classes: Sequence[str], *, may_lack: bool = False, videos: bool = False
) -> tuple[list[Row], list[str]]:
    """The images of `folder/parent/class/...` in the order of classes and paths, and the files that are none;
    with ``videos`` these are among the images.

    A class with files but without images is a fault, unless classes ``may_lack`` images; an empty folder, or
    one of files that are passed over, is a class by name alone.
    """
    rows, ignored = list[Row](), list[str]()
    stored = {compose(name): name for name in subfolders(folder / parent)}
    for label, name in enumerate(classes):
        class_folder = folder / parent / stored.get(name, name)
        is_there = class_folder.is_dir()
        images, others = _files(class_folder, folder, videos) if is_there else ([], [])
        is_empty = all(is_passed_over(Path(file).name) for file in others)
        if not may_lack and not images and not (is_empty and class_folder.is_dir()):
            notes = *_heic_note(others), *_format_note(others), *_video_note(others)
            unread = "".join(f" {note}." for note in notes)
            fault(DataError(f"the class {name!r} has no images in {class_folder}.{unread}"))
        rows += [Row(image, label) for image in images]
        ignored += others
    return rows, ignored


def image_files(path: Path, frames: int | None = None) -> list[Path]:
    """The file itself, or all images below a folder, sorted by path; of each video so many ``frames``. A
    warning tells what else is there.

    Raises DataError for a folder without images.
    """
    if not path.is_dir():
        is_read = frames is not None and video.is_video(path) and path.is_file()
        return [*map(as_path, video.list_frames(path, frames or 1))] if is_read else [path]
    path = path.listed() if isinstance(path, Address) else path
    images, others = _files(path, path, frames is not None)
    if not images:
        unread = "".join(f" {note}." for note in (*_format_note(others), *_video_note(others)))
        raise DataError(f"the folder {path} has no files with an image suffix: give another folder.{unread}")
    for note in ignored_note(others):
        warn(f"{path}: {note}")
    return [
        file
        for image in images
        for file in ([path / image] if frames is None else image_files(path / image, frames))
    ]


def ignored_note(files: Sequence[str]) -> tuple[str, ...]:
    """Notes on files that are not read: photos in HEIC, images of other formats, files without an image
    suffix, and folders and images with names that are passed over.
    """
    passed_over = [file for file in files if is_passed_over(Path(file).name)]
    files = [file for file in files if not is_passed_over(Path(file).name)]
    told = (*HEIC, *UNREAD)
    others = [file for file in files if not (file.lower().endswith(told) or video.is_video(file))]
    return (
        *_heic_note(files),
        *_format_note(files),
        *_video_note(files),
        *_note(others, "file has|files have", "no image suffix and", "left out"),
        *_note(passed_over, "entry is|entries are", "hidden or left by a system and", "passed over"),
    )


def _heic_note(files: Sequence[str]) -> tuple[str, ...]:
    photos, remedy = [file for file in files if file.lower().endswith(tuple(HEIC))], "pip install pillow-heif"
    return _note(photos, "photo|photos", "in HEIC", f"not read without a library ({remedy})")


def _format_note(files: Sequence[str]) -> tuple[str, ...]:
    images = [file for file in files if file.lower().endswith(UNREAD)]
    return _note(images, "image|images", "in a format that is not read", f"left out (save as {FORMATS})")


def _video_note(files: Sequence[str]) -> tuple[str, ...]:
    videos = [file for file in files if video.is_video(file)]
    return (video.describe_unread(len(videos), list_names(videos, FEW)),) if videos else ()


def _left_out_notes(folder: Path, parents: Sequence[str], ignored: Sequence[str]) -> tuple[str, ...]:
    """`ignored_note`, and one on images beside the folders of classes, which lie in the folders ``parents``
    within ``folder``.
    """
    passed_over = list[Path]()
    files = [path for parent in parents for path in _visible(folder / parent, passed_over)]
    images = [path for path in files if _is_image(path) or (video.is_video(path) and path.is_file())]
    names = sorted(path.relative_to(folder).as_posix() for path in images)
    notes = ignored_note([*_describe(passed_over, folder), *ignored])
    return (*notes, *_note(names, "image lies|images lie", "beside the folders of classes and", "left out"))


def _describe(passed_over: Sequence[Path], top: Path) -> list[str]:
    """Folders and images that are passed over, as paths relative to ``top``: other files are no loss."""
    paths = [path for path in passed_over if path.is_dir() or path.suffix.lower() in SUFFIXES]
    return sorted(path.relative_to(top).as_posix() + "/" * path.is_dir() for path in paths)


def _note(files: Sequence[str], subjects: str, what: str, left: str) -> tuple[str, ...]:
    """A note on some files, if there are any; the subjects are words for one of them and for several."""
    one, several = subjects.split("|")
    subject = f"{one} {what} is" if len(files) == 1 else f"{several} {what} are"
    return (f"{len(files)} {subject} {left}: {list_names(files, FEW)}",) if files else ()


def _read_classes(folder: Path, domains: Sequence[str], *, videos: bool) -> Listing:
    """A folder of classes or of domains; one of images alone has classes by corrections."""
    parents = domains or [""]
    classes_by_parent = [_list_classes(folder / parent) for parent in parents]
    classes = sort_names({name for names in classes_by_parent for name in names})
    if not classes:
        files, others = _files(folder, folder, videos)
        if not files:
            raise no_classes(folder)
        parts = {UNDIVIDED: tuple(Row(file, UNLABELED) for file in files)}
        return Listing(folder.resolve().name, folder, (), (), parts, "", notes=ignored_note(others))
    rows, ignored, notes = list[Row](), list[str](), list[str]()
    labels = {name: label for label, name in enumerate(classes)}
    for parent, names in zip(parents, classes_by_parent, strict=True):
        images, files = class_images(folder, parent, names, videos=videos)
        rows += [Row(row.path, labels[names[row.label]]) for row in images]
        ignored += files
    if not rows:
        why = "none of its files is read as an image" if ignored else "its folders of classes are empty"
        raise DataError(f"{folder} has no images: {why}.")
    if domains:
        images_of = Counter(row.path.partition("/")[0] for row in rows)
        counts = ", ".join(f"{domain} ({plural(images_of[domain], 'image')})" for domain in domains)
        notes.append(
            f"its folders are read as domains of the same classes: {counts}; if they are classes, give "
            "--dataset.layout classes; to train on one domain and test on the others: dear run "
            f"domain-generalization --data {quote(str(folder))} --source {quote(domains[0])}"
        )
    name, keys = folder.resolve().name, tuple(classes)
    notes += _left_out_notes(folder, ["", *domains], ignored)
    return Listing(name, folder, keys, keys, {UNDIVIDED: tuple(rows)}, "", notes=tuple(notes))


def no_classes(folder: Path) -> DataError:
    """The error for a folder of images that neither folders nor corrections give a class."""
    return DataError(
        f"{folder} has no folders of classes. Give a folder with one folder of images per class, with train/ "
        "and test/, a folder in CoOp's layout, a CSV or JSONL file, a zip, or a tar or Parquet file that has "
        "the class of each image, in a column that --dataset.columns label=COLUMN names."
    )


def _read_only_split(folder: Path, name: str, *, videos: bool) -> Listing:
    """A folder with nothing but train/, which is split, or with nothing but test/ or val/."""
    listing, note = _read_classes(folder / name, (), videos=videos), f"{folder} has only {name}/"
    if split_of(name) != "train":
        note += ": all its images are for testing"
        splits = {"train": (), "test": listing.splits[UNDIVIDED]}
        listing = replace(listing, splits=splits, origin="all to test on")
    return replace(listing, name=folder.resolve().name, notes=(note, *listing.notes))


def _read_splits(folder: Path, parts: Mapping[str, str], *, videos: bool) -> Listing:
    """A folder of splits, given their folders within it."""
    name, tops = folder.resolve().name, {part.partition("/")[0] for part in parts.values()}
    others = [other for other in subfolders(folder) if other not in tops]
    notes = [f"its other folders are left out: {list_names(others, FEW)}"] if others else []
    labeled = {split: part for split, part in parts.items() if split == "train" or subfolders(folder / part)}
    notes += [  # a competition's test images have no labels
        f"{Path(part).name}/ has no folders of classes and is left out"
        for split, part in sorted(parts.items(), reverse=True)
        if split not in labeled
    ]
    train = folder / labeled["train"]
    if labeled.keys() == {"train"}:
        listing = _read_classes(train, (), videos=videos)
        return replace(listing, name=name, notes=(*notes, *listing.notes))
    if "test" not in labeled:  # as ImageNet is distributed
        labeled = {"train": labeled["train"], "test": labeled["val"]}
        notes.append(f"it has no labeled test images: {Path(labeled['test']).name} is used for testing")
    classes = _list_classes(train)
    if not classes:
        raise DataError(f"{train} has no folders of classes.")
    splits, ignored = dict[str, tuple[Row, ...]](), list[str]()
    for split, part in labeled.items():
        for foreign in sorted({*_list_classes(folder / part)} - {*classes}):
            fault(DataError(f"{folder / part / foreign} is a class that is not in {train}."))
        trains = split == "train"  # a class need not have images to test on
        rows, files = class_images(folder, part, classes, may_lack=not trains, videos=videos)
        if not rows:
            raise DataError(f"{folder / part} has no images.")
        absent = sorted({*range(len(classes))} - {row.label for row in rows})
        if absent and not trains:
            notes.append(
                f"{Path(part).name}/ has no images of {list_names((classes[i] for i in absent), FEW)}"
            )
        splits[split] = tuple(rows)
        ignored += files
    notes += _left_out_notes(folder, ["", *labeled.values()], ignored)
    origin, keys = ", ".join(f"{part}/" for part in labeled.values()), tuple(classes)
    return Listing(name, folder, keys, keys, splits, origin, notes=tuple(notes))


def _is_image(path: Path) -> bool:
    return path.suffix.lower() in SUFFIXES and path.is_file()


def _visible(folder: Path, passed_over: list[Path] | None = None) -> list[Path]:
    """What is in a folder, but what is passed over."""
    _, folders, files = next(walk_folders(folder, passed_over=passed_over))
    return [folder / name for name in (*folders, *files)]


def _files(folder: Path, top: Path, videos: bool = False) -> tuple[list[str], list[str]]:
    """The images, with ``videos`` or without, and the other files below a folder, sorted, as paths relative
    to ``top``; folders and images that are passed over are among the others. A link to a folder is
    followed, unless it leads to what is read anyway.
    """
    images, others, passed_over = list[str](), list[str](), list[Path]()
    whole, entered = os.path.join(os.path.realpath(folder), ""), set[str]()
    for parent, folders, names in walk_folders(folder, follow=True, passed_over=passed_over):
        for name in [name for name in folders if os.path.islink(os.path.join(parent, name))]:
            target = os.path.join(os.path.realpath(os.path.join(parent, name)), "")
            if target in entered or target.startswith(whole) or whole.startswith(target):
                folders.remove(name)
            entered.add(target)
        for path in [parent / name for name in names]:
            is_image = path.suffix.lower() in SUFFIXES or (videos and video.is_video(path))
            (images if is_image else others).append(path.relative_to(top).as_posix())
    others += _describe(passed_over, top)
    # By folder: a/0.png is before a-b/0.png.
    return sorted(images, key=_order), sorted(others, key=_order)


def _order(path: str) -> tuple[list[str], str]:
    return compose(path).split("/"), path
