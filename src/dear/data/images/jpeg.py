"""Where the picture of a JPEG file ends."""

import re
from typing import Final

MARKER: Final = re.compile(rb"\xff([^\x00\x01\xff\xd0-\xd7])")
"""A marker with content after it, or the end: not a stuffed byte of a scan, a fill byte or a restart."""
END: Final = b"\xd9"
MAX_SEGMENTS: Final = 2**18
"""Segments that are followed, with a step each; Pillow reads no more either."""


def without_trailer(content: bytes) -> bytes:
    """The content of a JPEG up to the end of its picture; all of it if no end is found. Other content may
    follow, such as a phone's video, in which any bytes have no meaning.

    Source: ITU-T T.81, annex B: a segment after a marker states its length, a scan's data follows its segment
    and has no marker but restarts.
    """
    position = 2
    for _ in range(MAX_SEGMENTS):
        marker = MARKER.search(content, position)
        if marker is None:
            return content
        if marker[1] == END:
            return content[: marker.end()]
        position = marker.end() + int.from_bytes(content[marker.end() : marker.end() + 2], "big")
    return content
