"""Tables in Arrow and Parquet files, which may be a stranger's. Only the columns of the images and of the
classes are read, some rows at a time, by Arrow's own library. No cell names a file.

Arrow obeys what a file says of itself, whatever memory and time that takes: read only in `isolated`.
"""

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, Protocol

from dear.data.sources.archive import require_modest
from dear.errors import DataError, DearError, first_line
from dear.limits import at_most
from dear.reading.files import ReadingError, opened, size_on_disk
from dear.reading.plain import parse_json
from dear.reading.typed import typed

Kind = Literal["images", "classes", "values"]
LABEL_TYPE: Final = re.compile(r"(large_)?string|bool|u?int(8|16|32|64)|float(32|64)?|double")
FEATURES: Final = b"huggingface"
"""The key of a schema's metadata under which the library datasets states the features of the columns."""
PARQUET, MAGIC, LENGTH = ".parquet", b"PAR1", 4
BUFFER: Final = 2**22  # bytes of a Parquet file that are read at a time


@dataclass(frozen=True)
class Column:
    """A column: its kind, Arrow's name of its type, and the names of numbered classes."""

    kind: Kind
    dtype: str
    names: tuple[str, ...] = ()


class Table(Protocol):
    """Columns by name, and their values."""

    columns: Mapping[str, Column]

    def __len__(self) -> int: ...

    def values(self, column: str, rows: int) -> Iterator[list[Any]]:
        """The values of a column, at most so many rows at a time; of images their files' bytes or None."""


class ArrowFiles:
    """A table in files of one kind, in their order: streams of Arrow, or Parquet.

    Raises DataError for files that are damaged or of different columns; LimitError for too many columns, rows
    or class names.
    """

    def __init__(self, files: Sequence[Path]) -> None:
        self.files = [*files]
        tables = [(_parquet if file.suffix == PARQUET else _stream)(file) for file in self.files]
        self.columns: Mapping[str, Column] = tables[0][0]
        self.rows = [rows for _, rows in tables]  # of each file
        for file, (columns, rows) in zip(self.files, tables, strict=True):
            if columns != self.columns:
                raise DataError(f"{file} has other columns than {self.files[0]}: save the data set again.")
            if rows < 0:
                raise ReadingError(file, f"it has {rows} rows")
        at_most("table_rows", sum(self.rows), self.files[0])

    def __len__(self) -> int:
        return sum(self.rows)

    def values(self, column: str, rows: int) -> Iterator[list[Any]]:
        """As `Table.values`. Raises DataError for damaged values: forged ones may lie outside of the file."""
        images = self.columns[column].kind == "images"
        for file, expected in zip(self.files, self.rows, strict=True):
            with _readable(file):
                count = 0
                for array in _arrays(file, column, rows, images):
                    count += len(array)
                    if count > expected:  # pages of Parquet may hold any number
                        break
                    array.validate(full=True)
                    yield array.to_pylist()
                if count != expected:
                    raise ReadingError(file, f"its column {column[:80]!r} has not one value in each row")


def _arrays(file: Path, column: str, rows: int, images: bool) -> Iterator[Any]:
    """The arrays of a file's column; of images that of their bytes."""
    import pyarrow

    if file.suffix == PARQUET:
        from pyarrow.parquet import ParquetFile

        with pyarrow.OSFile(os.fsencode(file)) as source:
            # Otherwise a column's values in a group of rows, all of them by default, are in memory at once.
            reader = ParquetFile(source, pre_buffer=False, buffer_size=BUFFER)
            leaf = f"{column}.bytes" if images else column
            for batch in _modest(reader.iter_batches(rows, columns=[leaf], use_threads=False), file):
                if batch.schema.names != [column]:
                    raise ReadingError(file, f"its column {column[:80]!r} shares its name with another")
                yield _bytes(batch.column(0)) if images else batch.column(0)
        return
    with pyarrow.memory_map(os.fsencode(file)) as source:
        schema = pyarrow.ipc.open_stream(source).schema
        options = pyarrow.ipc.IpcReadOptions(
            included_fields=[schema.get_field_index(column)], use_threads=False
        )
        source.seek(0)
        for batch in _modest(pyarrow.ipc.open_stream(source, options=options), file):
            cells = batch.column(0)
            cells.validate(full=True)  # a slice is checked by its own rows
            array = _bytes(cells) if images else cells
            for start in range(0, len(array), rows):
                yield array.slice(start, rows)


def _modest(batches: Iterable[Any], file: Path) -> Iterator[Any]:
    """The batches. Raises LimitError as soon as they have many times the bytes of their file: several may be
    the same ones, or packed.
    """
    total, size = 0, size_on_disk(file)
    for batch in batches:
        # Those of a stream as it has them: what its values claim is not checked yet. Of Parquet, parts come.
        total += batch.nbytes if file.suffix == PARQUET else batch.get_total_buffer_size()
        require_modest(file, total, size)
        yield batch


def _bytes(cells: Any) -> Any:
    """The bytes of cells of images; null where the cell is."""
    fields = [cells.type.field(index).name for index in range(cells.type.num_fields)]
    return cells.flatten()[fields.index("bytes")]


def _stream(file: Path) -> tuple[dict[str, Column], int]:
    """The columns and the number of rows of a stream of Arrow; `save_to_disk` writes nothing else."""
    import pyarrow

    with opened(file), _readable(file), pyarrow.memory_map(os.fsencode(file)) as source:
        columns = _columns(pyarrow.ipc.open_stream(source).schema, file)
        source.seek(0)
        options = pyarrow.ipc.IpcReadOptions(included_fields=[0], use_threads=False)
        return columns, sum(map(len, _modest(pyarrow.ipc.open_stream(source, options=options), file)))


def _parquet(file: Path) -> tuple[dict[str, Column], int]:
    """The columns and the number of rows of a Parquet file; its values are not read."""
    with opened(file, links=True) as source, _readable(file):
        size = os.fstat(source.fileno()).st_size
        at_most("parquet_bytes", size, file)
        source.seek(max(0, size - LENGTH - len(MAGIC)))
        end = source.read(LENGTH + len(MAGIC))
        if not end.endswith(MAGIC):
            raise ReadingError(file, "it is not a complete Parquet file")
        at_most("parquet_footer", int.from_bytes(end[:LENGTH], "little"), file)
        import pyarrow
        from pyarrow.parquet import ParquetFile

        with pyarrow.OSFile(os.fsencode(file)) as content:
            reader = ParquetFile(content, pre_buffer=False)
            return _columns(reader.schema_arrow, file), reader.metadata.num_rows


def _columns(schema: Any, file: Path) -> dict[str, Column]:
    """The columns of a schema, with the features that its metadata state."""
    at_most("columns", len(schema.names), file)
    if len(schema.names) > len({*schema.names}):
        raise ReadingError(file, "two of its columns have the same name")
    text = (schema.metadata or {}).get(FEATURES)
    facts = {} if text is None else typed(parse_json(text, file), dict[str, Any], file, FEATURES.decode())
    info = typed(facts.get("info") or {}, dict[str, Any], file, "info")
    features = typed(info.get("features") or {}, dict[str, Any], file, "features")
    return {field.name: _column(field, features.get(field.name), file) for field in schema}


def _column(field: Any, feature: Any, file: Path) -> Column:
    facts = feature if isinstance(feature, dict) else {}
    parts = [field.type.field(index) for index in _range(field)]
    children = {part.name: str(part.type) for part in parts}
    named = len(children) == len(parts) and children.keys() <= {"bytes", "path"}
    of_bytes = named and children.get("bytes") in ("binary", "large_binary")
    if of_bytes and facts.get("_type", "Image") == "Image":
        return Column("images", "image")
    if facts.get("_type") == "ClassLabel":
        names = typed(facts.get("names"), list[str], file, f"names of the column {field.name[:80]}")
        at_most("classes", len(names), file)
        return Column("classes", str(field.type), tuple(names))
    return Column("values", str(field.type))


def _range(field: Any) -> range:
    return range(field.type.num_fields if str(field.type).startswith("struct<") else 0)


@contextmanager
def _readable(file: Path) -> Iterator[None]:
    """Context in which what Arrow raises is a ReadingError that names the file."""
    import pyarrow

    try:
        yield
    except (DearError, MemoryError):
        raise
    except (pyarrow.ArrowException, OSError, ValueError, KeyError, StopIteration) as error:
        raise ReadingError(file, f"its content is damaged ({first_line(error)[:300]})") from error
