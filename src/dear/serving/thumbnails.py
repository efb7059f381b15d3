"""Small pictures of an index's files, for clients who may not decode more than they may upload."""

import hashlib
import threading
from collections import OrderedDict
from pathlib import Path

from dear.data.images.decode import as_image, decode, read_image
from dear.errors import DataError
from dear.reading.files import file_size
from dear.serving.examples import png_of
from dear.serving.limits import Limits, Refused, check_picture

SIDE, LONGEST = 160, 640
"""Pixels of the shorter side of a thumbnail, and at most of the longer one."""
ROOM = 2**24  # bytes of the thumbnails that stay in memory


class Thumbnails:
    """PNGs of pictures, thread-safe. The last ones, of ``room`` bytes together, are not made anew."""

    def __init__(self, limits: Limits, room: int = ROOM) -> None:
        self.limits, self.room, self.size = limits, room, 0
        self._by_content = OrderedDict[str, bytes]()
        self._changing = threading.Lock()

    def of(self, path: Path, sha256: str) -> bytes | None:
        """The thumbnail of a file; None if it cannot be read, has not this SHA-256, or is larger than an
        upload may be.
        """
        try:
            if (file_size(path) or 0) > self.limits.upload_bytes:
                return None
            content = read_image(path)
            if hashlib.sha256(content).hexdigest() != sha256:
                return None
            if (thumbnail := self._known(sha256)) is not None:
                return thumbnail
            check_picture(content, self.limits)
            image = as_image(decode(path, SIDE, content))
        except (DataError, Refused):
            return None
        image.thumbnail((LONGEST, LONGEST))  # a picture may be 16 times as long as it is wide
        thumbnail = png_of(image)
        self._keep(sha256, thumbnail)
        return thumbnail

    def _known(self, sha256: str) -> bytes | None:
        with self._changing:
            if sha256 in self._by_content:
                self._by_content.move_to_end(sha256)
            return self._by_content.get(sha256)

    def _keep(self, sha256: str, thumbnail: bytes) -> None:
        with self._changing:
            self.size += len(thumbnail) - len(self._by_content.pop(sha256, b""))
            self._by_content[sha256] = thumbnail
            while self.size > self.room:
                self.size -= len(self._by_content.popitem(last=False)[1])
