"""The samples of a Parquet file: a column of the images' bytes, as data sets on the hub have it."""

import io
import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

from dear.data.sources.archive import require_modest
from dear.data.sources.huggingface import suffix_of
from dear.data.sources.table import LABELS, column
from dear.data.sources.tar import Sample
from dear.errors import DataError, first_line, installation
from dear.text import list_names

ROWS = 8  # that are in memory at a time: each may have the largest image


def read_parquet(
    archive: Path, content: BinaryIO, length: int, columns: Mapping[str, str]
) -> Iterator[Sample]:
    """The images of a Parquet file of this length in order, each with its label and the plain values of its
    row. ``columns`` are the names of those for path (the images) and label, if the user gave them.

    The images are the first column of bytes, or of structs with a field bytes. The labels are the column
    label, class, ..., else the only one whose numbers have names in the metadata of the library datasets.

    Raises DataError for a file that is damaged or has no such column, or without the library; LimitError for
    one that unpacks to many times its size.
    """
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as error:
        raise DataError(f"{archive} needs the library pyarrow: {installation('datasets')}.") from error
    try:
        with pq.ParquetFile(content) as file:
            schema, metadata = file.schema_arrow, file.metadata
            groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
            require_modest(sum(group.total_byte_size for group in groups), length, archive)
            named = _names(schema)
            image = columns.get("path") or next((field.name for field in schema if _is_image(field)), None)
            if image not in schema.names or not _is_image(schema.field(image)):
                raise DataError(f"{archive} has no column of images: it has {list_names(schema.names, 9)}.")
            plain = [field.name for field in schema if _is_plain(field.type)]
            label = columns.get("label") or column(LABELS, schema.names)
            if label not in schema.names and "label" not in columns and len(named) == 1:
                label = next(iter(named))
            if label in schema.names and label not in plain:
                kind = schema.field(label).type
                raise DataError(f"{archive}: the column {label} holds {kind}, not texts or numbers.")
            if label not in schema.names and ("label" in columns or named):
                raise DataError(
                    f"{archive} has no column {label!r} of labels: name one of {list_names(plain, 9)} with "
                    "--dataset.columns label=COLUMN."
                )
            number = 0
            for batch in file.iter_batches(batch_size=ROWS, columns=[image, *plain]):
                for row in batch.to_pylist():
                    cell = row.pop(image)
                    picture = (cell.get("bytes") if isinstance(cell, dict) else cell) or b""
                    facts = {name: _spell(archive, name, value, named) for name, value in row.items()}
                    path = f"{number:09}{suffix_of(picture)}"
                    yield Sample(path, io.BytesIO(picture), facts.get(label), facts)
                    number += 1
    except (pa.ArrowException, OSError, ValueError) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(
            f"{archive} is damaged or no Parquet file ({first_line(error)}): copy or create it again."
        ) from error


def _names(schema: Any) -> dict[str, list[str]]:
    """The names of the numbers of each column that has such, by the metadata of the library datasets."""
    with suppress(ValueError, KeyError, TypeError, AttributeError):
        features = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
        return {
            name: [*map(str, feature["names"])]
            for name, feature in features.items()
            if feature.get("_type") == "ClassLabel" and name in schema.names
        }
    return {}


def _is_image(field: Any) -> bool:
    """True for a column of bytes, or of structs that have some."""
    import pyarrow.types as kinds

    kind = field.type
    if kinds.is_struct(kind):
        return any(inner.name == "bytes" and _is_image(inner) for inner in kind)
    return bool(kinds.is_binary(kind) or kinds.is_large_binary(kind))


def _is_plain(kind: Any) -> bool:
    """True for a column of texts, numbers or times."""
    import pyarrow.types as kinds

    if kinds.is_dictionary(kind):
        return _is_plain(kind.value_type)
    tests = (
        kinds.is_string, kinds.is_large_string, kinds.is_integer, kinds.is_floating, kinds.is_boolean,
        kinds.is_temporal,
    )  # fmt: skip
    return any(test(kind) for test in tests)


def _spell(archive: Path, name: str, value: Any, named: Mapping[str, list[str]]) -> Any:
    """A value as a table of images has it: None for a missing one, the name of a number that has a name."""
    if value is None or value != value or (name in named and value == -1):  # NaN, and a withheld label
        return None
    if name not in named:
        return value if isinstance(value, str | int | float) and not isinstance(value, bool) else str(value)
    if not 0 <= value < len(named[name]):
        raise DataError(f"{archive} has the label {value} in the column {name}, of {len(named[name])} names.")
    return named[name][value]
