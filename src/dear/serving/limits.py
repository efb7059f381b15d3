"""Limits of the server: sizes are checked before anything is decoded, and each client's work has a rate."""

import math
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from PIL import Image

from dear.data.images.decode import FORMATS, open_image
from dear.errors import DearError, SettingsError
from dear.limits import LimitError

MIB = 2**20
FORM_ROOM = MIB // 8  # bytes around a file in a form
CLIENTS = 4096  # number of clients whose rates are remembered


@dataclass(frozen=True)
class Limits:
    """Limits of the server.

    Attributes:
        upload: Size of an uploaded file, in MiB; of a larger one in the index there is no thumbnail.
        megapixels: Size of a picture, read from its header before its pixels are unpacked; the same.
        rate: Units of work that one client (address) may ask for per minute, and at once; 0 for no limit. A
            request with a body is one, and so are each further image in it, each further megapixel of an
            image, each 100 characters of new class names (ten at least for a name), each thumbnail, and each
            further 100,000 bytes of an answer about the bundle.
        images: Images in a request of several; together they are one upload.
        waiting: Requests in progress at a time, seven eighths of them of one client if there is a rate;
            further ones are told to retry later.
        connections: Clients connected at a time; beyond that, those that have been silent for longest are
            dropped.
        bodies: Size of all uploads in memory at a time, in MiB; beyond that, the slowest is refused.
        patience: Seconds that a request may take to arrive.
        batch: Images that go through the model at once.
        wait: Milliseconds that a batch waits for more images.
        decoders: Images decoded at a time; all but one of them may be those of thumbnails.
    """

    upload: float = 10.0
    megapixels: float = 40.0
    rate: int = 600
    images: int = 64
    waiting: int = 256
    connections: int = 512
    bodies: float = 512.0
    patience: float = 30.0
    batch: int = 16
    wait: float = 5.0
    decoders: int = 2

    def __post_init__(self) -> None:
        minimums = {
            "rate": 0,
            "images": 1,
            "waiting": 1,
            "connections": 1,
            "batch": 1,
            "wait": 0,
            "decoders": 1,
        }
        for name, minimum in minimums.items():
            if not getattr(self, name) >= minimum:
                raise SettingsError(f"limits.{name} is {getattr(self, name)}: it must be at least {minimum}.")
        for name in ("upload", "megapixels", "bodies", "patience"):
            if not 0 < getattr(self, name) < math.inf:
                raise SettingsError(
                    f"limits.{name} is {getattr(self, name)}: it must be above 0, and finite."
                )
        if self.bodies < self.upload:
            raise SettingsError(
                f"limits.bodies is {self.bodies:g}: it must be at least limits.upload, {self.upload:g}."
            )

    @property
    def upload_bytes(self) -> int:
        return int(self.upload * MIB)

    @property
    def body_bytes(self) -> int:
        return int(self.bodies * MIB) + FORM_ROOM

    @property
    def pixels(self) -> int:
        return int(self.megapixels * 1_000_000)


KINDS = {
    400: "parameter",
    401: "token",
    403: "origin",
    404: "not-found",
    405: "not-found",
    408: "slow",
    413: "too-large",
    415: "image",
    421: "origin",
    422: "image",
    429: "rate",
    431: "too-large",
    500: "server",
    503: "busy",
}
"""The kind of a refusal by its HTTP status, unless it names another."""


class Refused(DearError):
    """A request that the server refuses: the message, the HTTP status and the kind say why.

    Attributes:
        headers: Headers of the response, such as Retry-After.
        kind: A word for programs, which stays when the message changes: of `KINDS`, or "form".
    """

    def __init__(
        self, status: int, message: str, headers: dict[str, str] | None = None, kind: str | None = None
    ) -> None:
        self.status, self.headers, self.kind = status, headers or {}, kind or KINDS.get(status, "parameter")
        super().__init__(message)


def check_upload(size: int, limits: Limits) -> None:
    """Raise Refused (413) for an upload that is too large."""
    if size > limits.upload_bytes:
        raise Refused(
            413, f"the upload is larger than {limits.upload:g} MiB, the limit: send a smaller file."
        )


def check_picture(data: bytes, limits: Limits) -> int:
    """Check a file by its header alone, and return its number of pixels. Raise Refused: 400 if it is
    empty, 415 if it is not an image in a supported format, 413 if it has too many pixels.
    """
    check_upload(len(data), limits)
    if not data:
        raise Refused(400, "the file is empty: send an image.", kind="image")
    try:
        with open_image(data) as file:
            width, height = file.size
    except Image.DecompressionBombError:
        raise Refused(
            413, f"the image has far more than {limits.megapixels:g} megapixels, the limit."
        ) from None
    except LimitError as error:
        raise Refused(413, f"the image is too large: {error}") from None
    except Exception:  # Pillow's exceptions for a broken header differ from format to format
        raise Refused(415, f"the file is not an image in a supported format: send {FORMATS}.") from None
    if width * height > limits.pixels:
        raise Refused(
            413,
            f"the image has {width} x {height} pixels ({width * height / 1e6:.1f} megapixels); the limit is "
            f"{limits.megapixels:g} megapixels: make it smaller.",
        )
    return width * height


def work_of_picture(pixels: int) -> float:
    """Units of work of a picture beyond its first."""
    return max(0.0, pixels / 1e6 - 1)


def work_of_answer(size: int) -> float:
    """Units of work of an answer of so many bytes beyond the first 100,000: it is kept for a slow reader."""
    return max(0.0, size / 100_000 - 1)


def work_of_names(names: Sequence[str], templates: int) -> float:
    """Units of work of encoding class names."""
    return templates * sum(max(10, len(name)) for name in names) / 100


class Rate:
    """A bucket of units of work per client, thread-safe: ``rate`` units at first, and as many new ones per
    minute.
    """

    def __init__(self, rate: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.rate, self.clock = rate, clock
        self._clients = OrderedDict[str, tuple[float, float]]()  # units, and the time of that
        self._changing = threading.Lock()

    def take(self, client: str, work: float = 1.0) -> None:
        """Take units from a client's bucket. Raises Refused (429), and takes none, if there are too few.

        Half a bucket is enough for anything: what is missing then comes off the units to come, at most a
        minute's.
        """
        if not self.rate or not work:
            return
        with self._changing:
            units, now = self._require(client, work)
            self._clients.pop(client, None)
            self._clients[client] = (units - min(work, self.rate), now)
            if len(self._clients) > CLIENTS:
                self._clients.popitem(last=False)

    def check(self, client: str) -> None:
        """Raise Refused (429) if a client has no unit, without taking one."""
        if self.rate:
            with self._changing:
                self._require(client, 1.0)

    def _require(self, client: str, work: float) -> tuple[float, float]:
        """A client's units now, and the current time."""
        now = self.clock()
        units, then = self._clients.get(client, (float(self.rate), now))
        units = min(float(self.rate), units + (now - then) * self.rate / 60)
        needed = min(work, max(1.0, self.rate / 2))
        if units < needed:
            wait = max(1, round((needed - units) * 60 / self.rate + 0.5))
            raise Refused(
                429,
                f"more than {self.rate} units of work per minute (a request, an image, a megapixel, ten new "
                f"class names or a thumbnail is one): try again in {wait} s.",
                {"Retry-After": str(wait)},
            )
        return units, now
