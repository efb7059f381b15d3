"""What a server takes: sizes are checked before anything is unpacked, and each client has a rate."""

import math
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from PIL import Image

from dear.data.images.raster import READ, opened
from dear.errors import DearError, SettingsError
from dear.limits import LimitError

MIB = 2**20
FORM_ROOM = MIB // 8  # bytes around a file in a form
CLIENTS = 4096  # whose rates are remembered


@dataclass(frozen=True)
class Limits:
    """Limits of the server.

    Attributes:
        upload: Size of an uploaded file, in MiB.
        megapixels: Size of a picture, read from its header before its pixels are unpacked.
        rate: Requests with a body that one client (address) may make in a minute, and at once; 0 for any.
        waiting: Requests that may be under way at once; more are told to come again.
        connections: Clients that may be connected at once; beyond it, those go that have been silent for
            longest.
        bodies: Size of all uploads that are held at once, in MiB; beyond it, the slowest is refused.
        patience: Seconds that a request may take to come in.
        batch: Images that go through the model at once.
        wait: Milliseconds that a batch waits for more images.
        decoders: Images that are unpacked at once.
    """

    upload: float = 10.0
    megapixels: float = 40.0
    rate: int = 600
    waiting: int = 256
    connections: int = 512
    bodies: float = 512.0
    patience: float = 30.0
    batch: int = 16
    wait: float = 5.0
    decoders: int = 2

    def __post_init__(self) -> None:
        least_of = {"rate": 0, "waiting": 1, "connections": 1, "batch": 1, "wait": 0, "decoders": 1}
        for name, least in least_of.items():
            if not getattr(self, name) >= least:
                raise SettingsError(f"limits.{name} is {getattr(self, name)}: it must be at least {least}.")
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


class Refused(DearError):
    """A request that the server does not take: the message and the HTTP status say why.

    Attributes:
        headers: Of the answer, such as Retry-After.
    """

    def __init__(self, status: int, message: str, headers: dict[str, str] | None = None) -> None:
        self.status, self.headers = status, headers or {}
        super().__init__(message)


def check_upload(size: int, limits: Limits) -> None:
    """Raise Refused (413) for more bytes than a file may have."""
    if size > limits.upload_bytes:
        raise Refused(
            413, f"the upload is larger than {limits.upload:g} MiB, the limit: send a smaller file."
        )


def check_picture(data: bytes, limits: Limits) -> None:
    """Look at a file's header alone. Raise Refused: 400 if it is empty, 415 if it is no image of a kind that
    is read, 413 if it has too many pixels.
    """
    check_upload(len(data), limits)
    if not data:
        raise Refused(400, "the file is empty: send an image.")
    try:
        with opened(data) as file:
            width, height = file.size
    except Image.DecompressionBombError:
        raise Refused(
            413, f"the image has far more than {limits.megapixels:g} megapixels, the limit."
        ) from None
    except LimitError as error:
        raise Refused(413, f"the image is too much: {error}") from None
    except Exception:  # what Pillow raises on a broken header differs from format to format
        raise Refused(415, f"the file is no image of a kind that is read: send {READ}.") from None
    if width * height > limits.pixels:
        raise Refused(
            413,
            f"the image has {width} x {height} pixels ({width * height / 1e6:.1f} megapixels); the limit is "
            f"{limits.megapixels:g} megapixels: make it smaller.",
        )


class Rate:
    """A bucket of tokens for each client: ``rate`` at first, and as many new ones in a minute."""

    def __init__(self, rate: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.rate, self.clock = rate, clock
        self._clients = OrderedDict[str, tuple[float, float]]()  # tokens left, when

    def take(self, client: str) -> None:
        """Take one of a client's tokens. Raises Refused (429) if there is none."""
        if not self.rate:
            return
        self.check(client)
        left, now = self._left(client)
        self._clients.pop(client, None)
        self._clients[client] = (left - 1, now)
        if len(self._clients) > CLIENTS:
            self._clients.popitem(last=False)

    def _left(self, client: str) -> tuple[float, float]:
        """A client's tokens now, and when that is."""
        now = self.clock()
        left, then = self._clients.get(client, (float(self.rate), now))
        return min(float(self.rate), left + (now - then) * self.rate / 60), now

    def check(self, client: str) -> None:
        """Raise Refused (429) if a client has no token left; take none."""
        left, _ = self._left(client)
        if self.rate and left < 1:
            wait = max(1, round((1 - left) * 60 / self.rate + 0.5))
            raise Refused(
                429,
                f"more than {self.rate} requests a minute: try again in {wait} s.",
                {"Retry-After": str(wait)},
            )
