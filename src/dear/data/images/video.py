"""Frames of video files. A frame is an image whose path is `VIDEO#t=SECONDS`, as in the media fragments of
the W3C: what takes the path of an image takes that of a frame.

Videos are untrusted. FFmpeg is restricted to a few formats and codecs, within limits, and is given an open
file: it can open no other one, and no address. Light to import.
"""

import io
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from dear.errors import DataError, first_line, installation
from dear.limits import limit, require_at_most
from dear.reading.files import ReadingError, opened
from dear.reading.remote import as_path
from dear.text import plural

HAS_VIDEO: Final = find_spec("av") is not None
SUFFIXES: Final = frozenset([
    ".3gp", ".avi", ".m2ts", ".m4v", ".mkv", ".mov", ".mp4", ".mpeg", ".mpg", ".mts", ".webm",
])  # fmt: skip
"""Suffixes of video files."""
HELP: Final = "docs/your-data.md#videos"
HOW: Final = "--dataset.frames 8, in `dear predict` --frames 8, reads 8 frames of each"
FORMATS: Final = "mov,matroska,avi,mpegts,mpeg"
"""FFmpeg's names of the formats that are read. Others, such as playlists, name files to read."""
CODECS: Final = (
    "h264", "hevc", "av1", "libdav1d", "vp8", "vp9", "libvpx", "libvpx-vp9", "mpeg4", "mpeg2video",
    "mpeg1video", "mjpeg", "h263", "prores",
)  # fmt: skip
FRAME: Final = re.compile(r"(.+)#t=(\d{1,9}\.\d{3})", re.DOTALL)
NEAR: Final = 0.0005
"""Seconds by which a time in a path may be rounded."""


def is_video(path: str | os.PathLike[str]) -> bool:
    """Whether a path has the suffix of a video."""
    return os.path.splitext(path)[1].lower() in SUFFIXES


def split_frame(path: str | os.PathLike[str]) -> tuple[Path, float] | None:
    """The video and the time of a frame's path; None for another path."""
    match = FRAME.fullmatch(os.fspath(path))
    return (as_path(match[1]), float(match[2])) if match and is_video(match[1]) else None


def file_of(path: Path) -> Path:
    """The file that an image is in: of a frame its video, else the path itself."""
    frame = split_frame(path)
    return path if frame is None else frame[0]


def list_frames(video: Path, count: int) -> list[str]:
    """The paths of ``count`` frames of a video: the middles of as many equal parts, or fewer if it has fewer
    frames. Of a video that cannot be read, one, whose reading says why.
    """
    try:
        with _open(video) as (container, stream):
            seconds, frames = _measure(container, stream)
    except DataError:
        seconds, frames = 0.0, 1
    count = max(1, min(count, frames))
    return [f"{video}#t={(number + 0.5) * seconds / count:.3f}" for number in range(count)]


def read_frame(video: Path, seconds: float) -> bytes:
    """The frame that is shown at a time from the video's start, upright, as the content of a BMP file. Raises
    DataError for a video that is missing or cannot be read, or beyond a limit.
    """
    with _open(video) as (container, stream):
        first = stream.start_time or 0
        container.seek(first + int(seconds / stream.time_base), stream=stream)
        frame = _find_frame(container, stream, seconds)
        if frame is None:  # its index leads behind the frame
            container.seek(first, stream=stream)
            frame = _find_frame(container, stream, seconds, or_first=True)
        if frame is None:
            raise DataError(f"cannot read the video {video}: it has no frame.")
        image = frame.to_image()
        if frame.rotation % 360:  # counterclockwise, as Pillow turns
            image = image.rotate(frame.rotation, expand=True)
        content = io.BytesIO()
        image.save(content, "BMP")
        return content.getvalue()


def _find_frame(container: Any, stream: Any, seconds: float, *, or_first: bool = False) -> Any:
    """The last frame until a time; if all are later None, or the first."""
    first, best = (stream.start_time or 0) * stream.time_base, None
    for number, frame in enumerate(container.decode(stream)):
        require_at_most("video_frames", number + 1, "to reach one picture")
        if frame.pts is not None and float(frame.pts * frame.time_base - first) > seconds + NEAR:
            return frame if best is None and or_first else best
        best = frame
    return best


def _measure(container: Any, stream: Any) -> tuple[float, int]:
    """The seconds and the frames of a video, by its header or, without these, by its packets."""
    if stream.duration:
        seconds = float(stream.duration * stream.time_base)
    elif container.duration and container.format.name != "mpegts":
        seconds = container.duration / 1_000_000
    else:
        packets = (packet for packet in container.demux(stream) if packet.pts is not None)
        last = max((packet.pts + (packet.duration or 0) for packet in packets), default=0)
        seconds = float((last - (stream.start_time or 0)) * stream.time_base)
    frames = stream.frames or round(seconds * float(stream.average_rate or 1))
    return max(0.0, seconds), frames


@contextmanager
def _open(video: Path) -> Iterator[tuple[Any, Any]]:
    """An open video and its stream of pictures. Whatever a decoder raises becomes a DataError."""
    if not HAS_VIDEO:
        raise DataError(f"cannot read the video {video}: {installation('video')}.")
    import av

    guards = {"format_whitelist": FORMATS, "codec_whitelist": ",".join(CODECS), "protocol_whitelist": "none"}
    try:
        with opened(video) as file, av.open(file, options=guards, metadata_errors="replace") as container:
            if (stream := container.streams.best("video")) is None:
                raise ValueError("it has no pictures")
            decoder: Any = stream.codec_context
            if decoder.codec.name not in CODECS:
                raise ValueError(f"its codec, {decoder.codec.name}, is not read: convert it to H.264")
            require_at_most("image_pixels", decoder.width * decoder.height, "its pictures")
            decoder.options = {"max_pixels": str(limit("image_pixels"))}  # those that come later too
            decoder.thread_count = 1  # files are read in threads
            yield container, stream
    except ReadingError as error:
        raise DataError(f"cannot read the video {video}: {error.reason}.") from error
    except DataError:
        raise
    except Exception as error:  # FFmpeg's are of many classes
        reason = getattr(error, "strerror", None) or first_line(error).rstrip(".")
        raise DataError(f"cannot read the video {video}: {reason}.") from error


def describe_unread(videos: int, names: str) -> str:
    """A note on videos of which no frame is read; ``names`` are some of them."""
    are = "is" if videos == 1 else "are"
    how = HOW if HAS_VIDEO else f"{installation('video')}, then {HOW}"
    return f"{plural(videos, 'video')} {are} not read: {names}; {how} ({HELP})"
