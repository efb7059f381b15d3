"""The frames of the videos of a data set, in place of these."""

from dataclasses import replace

from dear.data.images.photos import in_parallel
from dear.data.images.video import HAS_VIDEO, describe_unread, is_video, list_frames
from dear.data.settings import DataSettings
from dear.data.sources.listing import UNDIVIDED, DetailNote, Listing, Row
from dear.errors import DataError, fault
from dear.reading.remote import within
from dear.text import FEW, list_names, plural


def with_frames(listing: Listing, settings: DataSettings) -> Listing:
    """A data set with frames of its videos, as many of each as the settings have, and a note on them. Without
    the library that reads videos, or without the setting, videos are left out with a note; a class without
    another image is a fault.
    """
    videos = [path for path in listing.paths if is_video(path)]
    if not videos:
        return listing
    frames, names = dict[str, list[str]](), list_names(videos, FEW)
    if count := settings.frames if HAS_VIDEO else None:
        files = [within(listing.folder, path) for path in videos]
        found = in_parallel(lambda file: list_frames(file, count), files, settings.threads)
        frames = {
            path: [path + frame.removeprefix(str(file)) for frame in each]
            for path, file, each in zip(videos, files, found, strict=True)
        }
        total = sum(map(len, frames.values()))
        note: str = DetailNote(
            f"{plural(total, 'frame')} of {plural(len(videos), 'video')} are read: {names}"
        )
    else:
        note, frames = describe_unread(len(videos), names), {path: [] for path in videos}
    splits = {
        part: tuple(Row(path, row.label) for row in rows for path in frames.get(row.path, [row.path]))
        for part, rows in listing.splits.items()
    }
    for part, rows in listing.splits.items():
        for label in sorted({row.label for row in rows} - {row.label for row in splits[part]}):
            if part in ("train", UNDIVIDED) and label >= 0:
                fault(DataError(f"the class {listing.keys[label]!r} has no images: {note}."))
    groups = {path: group for video, group in listing.groups.items() for path in frames.get(video, [video])}
    return replace(listing, splits=splits, groups=groups, notes=(*listing.notes, note))
