"""The scan of a data set. It opens each image once, for its hash and its thumbnail. They say which images are
broken, copies of each other or in a group, and the split follows from the groups: in this order, for all
commands.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from dear.data.image_check import find_copies, group_images
from dear.data.images.hashes import FileFacts, read_files
from dear.data.images.photos import ObjectFacts, read_objects
from dear.data.images.thumbnails import Thumbnail, unpack_thumbnail
from dear.data.images.video import file_of
from dear.data.settings import DataSettings
from dear.data.sources.listing import UNDIVIDED, Listing, Row
from dear.data.sources.objects import ReadImage
from dear.data.sources.splits import divide, is_drawn
from dear.errors import DataError, as_fault
from dear.progress import Progress, silent
from dear.reading.remote import within
from dear.text import FEW, list_names

CHUNK = 256  # files between two calls of `progress`


@dataclass(frozen=True)
class Scan:
    """A data set whose images were read; what is known of each is by its path.

    Attributes:
        listing: With a split, and without broken images if these are skipped.
        has_drawn: True if the split was drawn.
        contents: Hashes of files, or what tells images in memory apart; empty for what cannot be read.
        thumbnails: Of the images that can be decoded, unless none was.
        faults: Why an image is missing or broken, which names the path and not the folder.
        groups: The group of each image that is in one with others (`group_images`).
        objects: The facts of images in memory.
    """

    listing: Listing
    has_drawn: bool
    contents: Mapping[str, bytes]
    thumbnails: Mapping[str, Thumbnail]
    faults: Mapping[str, str]
    groups: Mapping[str, str]
    objects: Mapping[str, ObjectFacts]

    def rename(self, name: Callable[[str], str]) -> Self:
        """The scan with other names for the images, for messages."""
        splits = {
            part: tuple(Row(name(row.path), row.label) for row in rows)
            for part, rows in self.listing.splits.items()
        }
        contents = {name(path): content for path, content in self.contents.items()}
        groups = {name(path): group for path, group in self.groups.items()}
        return replace(self, listing=replace(self.listing, splits=splits), contents=contents, groups=groups)

    @property
    def copies(self) -> list[list[str]]:
        """Groups of images with the same content, in order. A picture that was saved again is no copy."""
        return find_copies(self.contents)


def scan(
    listing: Listing,
    settings: DataSettings,
    read: ReadImage | None = None,
    *,
    decoded: bool = True,
    hashed: bool = True,
    progress: Progress = silent,
) -> Scan:
    """Read each image of a listing once, group the images, and draw the split if there is none. ``read``
    gives images that are not files. Files that need not be ``decoded`` are only hashed, and those that need
    not be ``hashed`` are not opened.

    Raises DataError for a class without a readable image where broken images are skipped, for an image in
    memory that cannot be read, and as `group_images`, unless faults are collected.
    """
    facts, objects = dict[str, FileFacts](), dict[str, ObjectFacts]()
    if read is not None:
        objects = read_objects(listing.paths, read, settings.short_side, settings.threads)
        thumbnails = {path: each.thumbnail for path, each in objects.items() if decoded}
    else:
        facts = _read_files(listing, settings, progress, decoded=decoded) if decoded or hashed else {}
        packed = {path: each.thumbnail for path, each in facts.items() if each.thumbnail}
        thumbnails = {path: unpack_thumbnail(content) for path, content in packed.items()}
    faults = {path: each.fault for path, each in facts.items() if each.fault}
    if settings.broken == "skip":
        listing = _leave_out(listing, faults)
    known = objects or facts
    contents = {path: b"" if path in faults else known[path].content for path in listing.paths if known}
    groups, has_drawn = dict[str, str](), is_drawn(listing, settings)
    with as_fault():
        groups, remarks = group_images(listing, settings, thumbnails, find_copies(contents))
        listing = replace(listing, notes=(*listing.notes, *remarks))
    listing = divide(listing, settings, groups, contents)
    return Scan(listing, has_drawn, contents, thumbnails, faults, groups, objects)


def _read_files(
    listing: Listing, settings: DataSettings, progress: Progress, *, decoded: bool
) -> dict[str, FileFacts]:
    """The facts of each file by its path."""
    paths, facts, cache = listing.paths, dict[str, FileFacts](), settings.cache_folder()
    for start in range(0, len(paths), CHUNK):
        chunk = paths[start : start + CHUNK]
        files = [within(listing.folder, path) for path in chunk]
        rows = read_files(files, settings.threads, cache, decoded=decoded)
        for path, file, each in zip(chunk, files, rows, strict=True):
            fault = each.fault.replace(str(file_of(file)), str(file_of(Path(path))))
            facts[path] = each._replace(fault=fault)
        progress("reading images", start + len(chunk), len(paths))
    return facts


def _leave_out(listing: Listing, broken: Mapping[str, str]) -> Listing:
    """The listing without broken images, and a note on them. Raises DataError for a class that loses all."""
    if not broken:
        return listing
    splits = dict[str, tuple[Row, ...]]()
    faults = list_names((reason.rstrip(".") for reason in broken.values()), FEW)
    for part, rows in listing.splits.items():
        splits[part] = tuple(row for row in rows if row.path not in broken)
        lost = {row.label for row in rows} - {row.label for row in splits[part]}
        if lost and part != "val":
            name = f"{min(lost)} ({listing.classnames[min(lost)]})"
            where = "" if part == UNDIVIDED else f" in {part}"
            raise DataError(f"{listing.name}: class {name} has no readable image{where}: {faults}")
    note = f"{len(broken)} of {len(listing.paths)} images cannot be read and are skipped: {faults}"
    return replace(listing, splits=splits, notes=(*listing.notes, note), standard=False)
