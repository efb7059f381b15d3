"""Request bodies: in memory within bounds, where fast clients take precedence over slow ones; and the parts
of forms. Nothing is written to disk.
"""

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from python_multipart import create_form_parser
from python_multipart.exceptions import FormParserError
from starlette.types import Message, Receive

from dear.serving.limits import FORM_ROOM, Limits, Refused, check_upload

logging.getLogger("python_multipart").setLevel(logging.CRITICAL)  # its warnings quote what a client sent
MAX_FIELDS = 8
CLOSE = {"Connection": "close"}  # no more of a rejected body is read
SOON = {"Retry-After": "2", **CLOSE}


class Body:
    """A request's body: the number of its bytes in memory, and its deadline."""

    def __init__(self, deadline: float) -> None:
        self.deadline, self.size, self.cut = deadline, 0, False
        self.clock: asyncio.Timeout | None = None


class Bodies:
    """The bodies of all requests. Senders that are too slow are refused (408). If there is no room for more
    bytes, the body that has been arriving for longest is refused (503), since honest ones arrive quickly.
    """

    def __init__(self, limits: Limits) -> None:
        self.limits, self.size = limits, 0
        self._arriving: dict[Body, None] = {}  # oldest first

    @contextmanager
    def body(self) -> Iterator[Body]:
        """Context in which a request's body is in memory."""
        body = Body(asyncio.get_running_loop().time() + self.limits.patience)
        self._arriving[body] = None
        try:
            yield body
        finally:
            self._arriving.pop(body, None)
            self.size -= body.size

    def counted(self, body: Body, receive: Receive) -> Receive:
        """Wrap ``receive`` to enforce the bounds."""

        async def counted() -> Message:
            if body not in self._arriving:  # complete or cut off: only a disconnect can follow
                self._check(body)
                return await receive()
            try:
                async with asyncio.timeout_at(body.deadline) as body.clock:
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
                self._arriving.pop(body, None)
            check_upload(max(0, body.size - FORM_ROOM), self.limits)
            return message

        return counted

    def _grow(self, body: Body, size: int) -> None:
        body.size, self.size = body.size + size, self.size + size
        for oldest in [*self._arriving]:
            if self.size <= self.limits.body_bytes:
                break
            self._cut(oldest)
        self._check(body)

    def _cut(self, body: Body) -> None:
        self.size, body.size, body.cut = self.size - body.size, 0, True
        self._arriving.pop(body, None)
        if body.clock is not None:
            body.clock.reschedule(asyncio.get_running_loop().time())

    @staticmethod
    def _check(body: Body) -> None:
        if body.cut:
            raise Refused(503, "the server has no room for the request: try again soon.", SOON)


def is_form(content_type: str) -> bool:
    return content_type.lower().startswith("multipart/form-data")


def form_parts(body: bytes, content_type: str, most: int = 1) -> tuple[list[bytes], dict[str, str]]:
    """The files "image" of a form, at least one and at most ``most``, and the other fields by name. Raises
    Refused (400, and 413 for too many).
    """
    files, fields, count = list[bytes](), dict[str, str](), 0

    def on_file(file: Any) -> None:
        if _text(file.field_name) != "image":
            raise Refused(
                400, "the form has a file that is not in its field 'image': name it so.", kind="form"
            )
        if len(files) == most:
            raise _too_many_files(most)
        file.file_object.seek(0)
        files.append(file.file_object.read())

    def on_field(field: Any) -> None:
        nonlocal count
        count += 1  # names may repeat
        if count > MAX_FIELDS:
            raise Refused(400, f"the form has more than {MAX_FIELDS} fields.", kind="form")
        fields[_text(field.field_name)] = _text(field.value)

    try:
        kind = content_type.encode("latin-1", "replace")
        config = {"MAX_MEMORY_FILE_SIZE": len(body) + 1, "MAX_BODY_SIZE": len(body) + 1}
        parser = create_form_parser({"Content-Type": kind}, on_field, on_file, config=config)
        try:
            parser.write(body)
            parser.finalize()
        finally:
            parser.parser = None  # a cycle, which would keep the files until garbage is collected
    except (FormParserError, ValueError) as error:
        message = f"the form cannot be read as multipart/form-data: {error}."
        raise Refused(400, message, kind="form") from None
    if not files:
        message = "the form has no file 'image': send one, as with curl -F image=@photo.jpg."
        raise Refused(400, message, kind="form")
    return files, fields


def _too_many_files(most: int) -> Refused:
    if most == 1:
        message = "the form has more than one file: send one image per request, or several to /api/batch."
        return Refused(400, message, kind="form")
    return Refused(413, f"the form has more than {most} images, the limit: send them in several requests.")


def _text(value: bytes | None) -> str:
    return (value or b"").decode("utf-8", "replace")
