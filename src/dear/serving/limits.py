"""The limits of the server, and refusals. Light to import: the command shows its options without torch."""

from dataclasses import dataclass

from dear.errors import DearError
from dear.reading.typed import PositiveFloat, PositiveInt, check_fields

MIB = 2**20
FORM_ROOM = MIB // 8  # bytes around the files of a form


@dataclass(frozen=True)
class Limits:
    """Limits of what requests may ask for.

    Attributes:
        upload: Largest uploaded file, or sum of all files of a form, in MiB.
        megapixels: Largest picture, in megapixels, by the size that its header names. A larger
            JPEG is decoded at a half, a quarter or an eighth of its size.
        images: Most images in a request.
        connections: Most requests at a time.
        batch: Most images that go through the model together.
    """

    upload: PositiveFloat = 24.0
    megapixels: PositiveFloat = 40.0
    images: PositiveInt = 64
    connections: PositiveInt = 256
    batch: PositiveInt = 16

    def __post_init__(self) -> None:
        check_fields(self, "limits")

    def check_size(self, size: int, room: int = FORM_ROOM) -> None:
        """Raise Refused (413) for an upload that has more bytes, beside the ``room`` that a form takes."""
        if size > self.upload * MIB + room:
            raise Refused(413, "too-large", f"the upload is larger than {self.upload:g} MiB, the limit.")


class Refused(DearError):
    """A request that the server refuses: the HTTP status, the kind (a word for programs, which stays when the
    message changes) and, if the request may succeed later, the seconds until then; ``facts`` are further keys
    of the answer.
    """

    def __init__(
        self, status: int, kind: str, message: str, retry_after: int | None = None, **facts: str | None
    ) -> None:
        self.status, self.kind, self.retry_after, self.facts = status, kind, retry_after, facts
        super().__init__(message)
