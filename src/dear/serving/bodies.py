"""Request bodies held in memory: bounded in bytes, with fast clients taking precedence over slow ones."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from starlette.types import Message, Receive

from dear.serving.limits import Limits, Refused, check_upload

CLOSE = {"Connection": "close"}  # the rest of a rejected body is not read either
SOON = {"Retry-After": "2", **CLOSE}


class Body:
    """One request's body: how many of its bytes are held, and the deadline for its next part."""

    def __init__(self, until: float) -> None:
        self.until, self.size, self.cut = until, 0, False
        self.clock: asyncio.Timeout | None = None


class Bodies:
    """The bodies of all requests. Senders that are too slow are refused (408). If there is no room for more
    bytes, the body that has been arriving for longest is refused (503), since honest ones arrive quickly.
    """

    def __init__(self, limits: Limits) -> None:
        self.limits, self.size = limits, 0
        self._coming: dict[Body, None] = {}  # oldest first

    @contextmanager
    def one(self) -> Iterator[Body]:
        """Context of a request's body, whose memory is released at the end."""
        body = Body(asyncio.get_running_loop().time() + self.limits.patience)
        self._coming[body] = None
        try:
            yield body
        finally:
            self._coming.pop(body, None)
            self.size -= body.size

    def counted(self, body: Body, receive: Receive, room: int) -> Receive:
        """Wrap ``receive`` to enforce the bounds; ``room`` is for the parts of a form around its file."""

        async def counted() -> Message:
            if body not in self._coming:  # complete or cut off: only a disconnect can follow
                self._check(body)
                return await receive()
            try:
                async with asyncio.timeout_at(body.until) as body.clock:
                    message = await receive()
            except TimeoutError:
                body.clock = None
                self._check(body)
                raise Refused(
                    408, f"the request did not arrive in {self.limits.patience:g} s: send it again.", CLOSE
                ) from None
            body.clock = None
            self._check(body)
            self._grow(body, len(message.get("body", b"")))
            if message["type"] == "http.request" and not message.get("more_body", False):
                self._coming.pop(body, None)
            check_upload(max(0, body.size - room), self.limits)
            return message

        return counted

    def _grow(self, body: Body, size: int) -> None:
        body.size, self.size = body.size + size, self.size + size
        for oldest in [*self._coming]:
            if self.size <= self.limits.body_bytes:
                break
            self._cut(oldest)
        self._check(body)

    def _cut(self, body: Body) -> None:
        self.size, body.size, body.cut = self.size - body.size, 0, True
        self._coming.pop(body, None)
        if body.clock is not None:
            body.clock.reschedule(asyncio.get_running_loop().time())

    @staticmethod
    def _check(body: Body) -> None:
        if body.cut:
            raise Refused(503, "the server has no room for the request: try again soon.", SOON)
