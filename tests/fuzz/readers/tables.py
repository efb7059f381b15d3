"""Forged tables of Arrow and Parquet, made of good ones: what they say of themselves, and its content."""

import json
import random
from collections.abc import Callable
from typing import Any

MANY_COLUMNS = 5001
MANY_ROWS = 2_100_000  # more than a table may have
Change = Callable[[Any, random.Random], tuple[str, bytes]]


def forged_stream(good: bytes, rng: random.Random) -> tuple[str, bytes]:
    """A table that takes far more than the file, or whose values share their bytes."""
    import pyarrow

    table = pyarrow.ipc.open_stream(good).read_all()
    column, version = table.schema.field("image"), rng.choice((pyarrow.ipc.MetadataVersion.V4, None))
    kind = rng.choice(("zstd", "lz4", "rows", "view", "dictionary", "columns", "older"))
    options = {} if version is None else {"metadata_version": version}
    if kind in ("zstd", "lz4"):
        cells = [{"bytes": bytes(10**8), "path": None}] * len(table)
        table = table.set_column(0, column, pyarrow.array(cells, type=column.type))
        options |= {"compression": kind}
    elif kind == "rows":
        rows = [pyarrow.nulls(MANY_ROWS, field.type) for field in table.schema]
        table = pyarrow.table(rows, schema=table.schema)
    elif kind == "columns":
        notes = [pyarrow.array(["x"] * len(table))] * MANY_COLUMNS
        table = pyarrow.table([*table.columns, *notes], [*table.column_names, *map(str, range(MANY_COLUMNS))])
        table = table.replace_schema_metadata(pyarrow.ipc.open_stream(good).schema.metadata)
    elif kind == "view":
        table = table.append_column("note", pyarrow.array(["x" * 10**6] * 4).cast(pyarrow.string_view()))
    elif kind == "dictionary":
        table = table.append_column("note", pyarrow.array(["x" * 10**6] * 4).dictionary_encode())
    sink = pyarrow.BufferOutputStream()
    with pyarrow.ipc.new_stream(sink, table.schema, options=pyarrow.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_table(table)
    content = bytes(sink.getvalue())
    return kind, content


def forged_parquet(good: bytes, rng: random.Random, changed: Change) -> tuple[str, bytes]:
    """A table that takes far more than the file, or has other types, names or features than are expected.
    ``changed`` gives the text of a changed value.
    """
    import pyarrow
    from pyarrow import parquet

    table = parquet.read_table(pyarrow.BufferReader(good))
    kind = rng.choice(("repeats", "rows", "nulls", "dictionary", "columns", "features", "codec"))
    options: dict[str, Any] = {"compression": rng.choice(("zstd", "snappy", "gzip", "brotli", "lz4", "none"))}
    if kind == "repeats":  # one value of 10 MB in 40 rows
        cells = pyarrow.array([{"bytes": bytes(10**7), "path": None}] * 40, table.schema.field("image").type)
        table = pyarrow.table({"image": cells, "label": [0] * 40})
        options |= {"compression": "zstd", "dictionary_pagesize_limit": 2**28}
    elif kind == "rows":
        rows = [pyarrow.nulls(MANY_ROWS, field.type) for field in table.schema]
        table = pyarrow.table(rows, schema=table.schema)
    elif kind == "nulls":
        table = table.set_column(0, "image", pyarrow.nulls(4, rng.choice((pyarrow.null(), pyarrow.binary()))))
    elif kind == "dictionary":
        table = table.set_column(1, "label", pyarrow.array(["a", "b"] * 2).dictionary_encode())
    elif kind == "columns":
        notes = [pyarrow.array(["x"] * len(table))] * MANY_COLUMNS
        table = pyarrow.table([*table.columns, *notes], [*table.column_names, *map(str, range(MANY_COLUMNS))])
    elif kind == "features":
        done, features = changed(json.loads(table.schema.metadata[b"huggingface"]), rng)
        table, kind = table.replace_schema_metadata({"huggingface": features}), f"features: {done}"
    sink = pyarrow.BufferOutputStream()
    parquet.write_table(table, sink, **options)
    content = bytes(sink.getvalue())
    return kind, content
