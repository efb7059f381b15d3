"""What describes messages of Arrow, flat buffers (Message.fbs and Schema.fbs of Apache Arrow): what pyarrow
does not tell, and what must hold before it reads them.
"""

import struct
from typing import BinaryIO, Final

from dear.limits import at_most
from dear.reading.files import ReadingError

CONTINUATION: Final = b"\xff" * 4
"""Before the length of a message, since version 0.15."""
EXPERIMENTAL: Final = b"ARROW:experimental_compression"  # how Arrow 0.17 marked compressed batches
SCHEMA: Final = 1
SMALLEST: Final = 4  # bytes that an entry of a vector takes
TIMESTAMP, UNION = 10, 14  # types with a text and with a vector


class _Buffer:
    """A flat buffer: numbers, fields of tables, and what these name."""

    def __init__(self, content: bytes) -> None:
        self.content = content

    def number(self, form: str, at: int) -> int:
        return int(struct.unpack_from(form, self.content, at)[0])

    def field(self, table: int, index: int) -> int:
        """The position of a table's field, 0 if it has none."""
        offsets = table - self.number("<i", table)
        entry = 4 + 2 * index
        offset = self.number("<H", offsets + entry) if entry < self.number("<H", offsets) else 0
        return table + offset if offset else 0

    def target(self, at: int) -> int:
        """The position that an offset names."""
        return at + self.number("<I", at)

    def length(self, field: int) -> int:
        """The length of the text or vector that a field names, 0 without one."""
        return self.number("<I", self.target(field)) if field else 0

    def tables(self, field: int) -> list[int]:
        """The tables in the vector that a field names."""
        first = self.target(field) + 4 if field else 0
        return [self.target(first + 4 * index) for index in range(self.length(field))]


def is_compressed(message: bytes) -> bool:
    """Whether a message of an Arrow stream is a compressed batch of rows: field 2 of a message is its header,
    and field 3 of a batch's header its compression. pyarrow has checked the offsets.
    """
    buffer = _Buffer(message)
    batch = buffer.target(buffer.field(buffer.number("<I", 0), 2))
    return buffer.field(batch, 3) > 0 or EXPERIMENTAL in message


def require_unshared(head: bytes, content: BinaryIO, where: object) -> None:
    """Check a schema, whose message begins with ``head`` and goes on with ``content``, before Arrow reads it:
    it copies what a flat buffer names as often as it is named, so that a megabyte becomes gigabytes.

    Raises ReadingError unless its fields and texts together take no more bytes than the message, LimitError
    for too many fields.
    """
    if not head.startswith(CONTINUATION):
        head, beginning = head[:4], head[4:]
    else:
        head, beginning = head[4:], b""
    size = int.from_bytes(head, "little")
    at_most("json_bytes", size, where)
    message = beginning + content.read(max(0, size - len(beginning)))
    try:
        buffer = _Buffer(message)
        root = buffer.target(0)
        kind, header = buffer.field(root, 1), buffer.field(root, 2)
        if not kind or buffer.number("<B", kind) != SCHEMA or not header:
            raise ReadingError(where, "it does not begin with a schema")
        schema = buffer.target(header)
        taken = _texts(buffer, buffer.field(root, 4)) + _texts(buffer, buffer.field(schema, 2))
        remaining, count = _fields(buffer, buffer.field(schema, 1), where), 0
        while remaining:
            field = remaining.pop()
            count += 1
            at_most("columns", count, where)
            kind = buffer.field(field, 2)
            form, facts = buffer.number("<B", kind) if kind else 0, buffer.field(field, 3)
            if form == UNION:
                raise ReadingError(where, "it has a column of unions: save it with plain types")
            if form == TIMESTAMP and facts:
                taken += buffer.length(buffer.field(buffer.target(facts), 1))
            taken += SMALLEST + buffer.length(buffer.field(field, 0)) + _texts(buffer, buffer.field(field, 6))
            if taken > len(message):
                raise ReadingError(where, "its schema names the same bytes again and again")
            remaining += _fields(buffer, buffer.field(field, 5), where)
    except (struct.error, OverflowError) as error:
        raise ReadingError(where, "its schema is damaged") from error


def _fields(buffer: _Buffer, vector: int, where: object) -> list[int]:
    at_most("columns", buffer.length(vector), where)
    return buffer.tables(vector)


def _texts(buffer: _Buffer, vector: int) -> int:
    """The bytes of the texts in a vector of keys and values."""
    if buffer.length(vector) > len(buffer.content):
        raise struct.error
    return sum(
        SMALLEST + buffer.length(buffer.field(pair, index))
        for pair in buffer.tables(vector)
        for index in (0, 1)
    )
