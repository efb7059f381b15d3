"""FAISS indexes over unit vectors: choosing a kind by the number of rows, building, extending and searching.

Rows are only ever appended; the rows of removed files are excluded from searches until there are too many
of them. FAISS scores are not used: its codes are rounded, so candidates are rescored from the stored
vectors (`dear.retrieval.vectors.similarity`).
"""

import math
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from jaxtyping import Bool, Float, Int

from dear.errors import DataError, OutputError, SettingsError, first_line, installation
from dear.reading.files import opened
from dear.retrieval.results import Kind, Storage
from dear.retrieval.vectors import METRIC

FLAT_UP_TO = 200_000
"""Up to this many rows all of them are compared: exact."""
CHUNK = 16_384  # rows converted to float32 at a time
LINKS = 32  # links of an HNSW node
POINTS = 64  # training points per IVF list
ITERATIONS = 10
SUM = 4  # bytes of the checksum at the end of a file
PIECE = 2**24  # bytes of a file in memory at a time
QUANTIZER, QUANTIZERS = 53, frozenset([b"IxFI", b"IxF2", b"IxFl"])
"""Where the quantizer of an IVF index begins in its file, and how: with flat ones only."""
GRAPH, VECTORS, NUMBERS = 37, (8, 4, 4, 8, 4), 20
"""Where the graph of an HNSW index begins in its file, the bytes of a number in each of its vectors, and the
bytes after these; then come the stored rows, which are flat.
"""


def require_faiss() -> None:
    """Raise SettingsError if FAISS is not installed."""
    if find_spec("faiss") is None:
        raise SettingsError(f"searching images needs FAISS: {installation('retrieval')}.")


def kind_for(rows: int) -> Kind:
    """Flat while that is fast enough, then IVF; HNSW is used only on request."""
    return "flat" if rows <= FLAT_UP_TO else "ivf"


def lists_for(rows: int) -> int:
    """Lists of an IVF index: four times the root of the rows, as FAISS advises."""
    return max(1, min(round(4 * math.sqrt(rows)), rows // 4))


def build(vectors: Float[np.ndarray, "row embed"], kind: Kind, storage: Storage) -> Any:
    """A FAISS index of all rows."""
    import faiss

    rows, embed = vectors.shape
    code = {"float16": faiss.ScalarQuantizer.QT_fp16, "int8": faiss.ScalarQuantizer.QT_8bit}[storage]
    metric = getattr(faiss, METRIC)
    if kind == "flat":
        index = faiss.IndexScalarQuantizer(embed, code, metric)
    elif kind == "hnsw":
        index = faiss.IndexHNSWSQ(embed, code, LINKS, metric)
    else:
        quantizer = faiss.IndexFlat(embed, metric)
        index = faiss.IndexIVFScalarQuantizer(quantizer, embed, lists_for(rows), code, metric)
        index.own_fields, _ = True, quantizer.this.disown()
        index.cp.niter, index.cp.max_points_per_centroid = ITERATIONS, POINTS
        index.cp.min_points_per_centroid = 1  # no warning about few rows
    if not index.is_trained:
        index.train(_sample(vectors, POINTS * lists_for(rows)))
    extend(index, vectors)
    return index


def extend(index: Any, vectors: Float[np.ndarray, "row embed"]) -> None:
    """Append the rows that the index does not contain yet."""
    for start in range(index.ntotal, len(vectors), CHUNK):
        index.add(np.ascontiguousarray(vectors[start : start + CHUNK], dtype=np.float32))


def search(
    index: Any,
    query: Float[np.ndarray, "embed"],
    count: int,
    live: Bool[np.ndarray, "row"],
    *,
    effort: float = 1.0,
) -> Int[np.ndarray, "neighbour"]:
    """Rows of the approximately nearest live vectors, nearest first; fewer if there are fewer.

    ``effort`` scales how much of the index is searched: more is slower and has a higher recall.
    ``live`` may include rows that the index does not contain yet.
    """
    import faiss

    count = min(count, index.ntotal)
    selector: dict[str, Any] = {}
    if not live.all():
        selector["sel"] = faiss.IDSelectorBitmap(np.packbits(live, bitorder="little"))
    if isinstance(index, faiss.IndexIVF):
        probes = round(min(index.nlist, max(1, effort * max(16, index.nlist / 16))))
        parameters = faiss.SearchParametersIVF(nprobe=probes, **selector)
    elif isinstance(index, faiss.IndexHNSW):
        width = round(min(index.ntotal, max(1, effort * 128)))
        parameters = faiss.SearchParametersHNSW(efSearch=max(count, width), **selector)
    else:
        parameters = faiss.SearchParameters(**selector)
    _, rows = index.search(query.astype(np.float32)[None], count, params=parameters)
    return np.asarray(rows[0][(rows[0] >= 0) & (rows[0] < len(live))])


def kind_of(index: Any) -> Kind:
    """The kind of a FAISS index made by `build`."""
    import faiss

    if isinstance(index, faiss.IndexIVF):
        return "ivf"
    return "hnsw" if isinstance(index, faiss.IndexHNSW) else "flat"


def storage_of(index: Any) -> Storage:
    """How an index stores its vectors."""
    import faiss

    codes = faiss.downcast_index(index.storage) if kind_of(index) == "hnsw" else index
    return "int8" if codes.sq.qtype == faiss.ScalarQuantizer.QT_8bit else "float16"


def save(index: Any, path: Path) -> None:
    """Write an index atomically. Raises OutputError."""
    import faiss

    part = path.with_name(path.name + ".part")  # FAISS accepts only file names
    try:
        part.unlink(missing_ok=True)  # it would write through a link
        faiss.write_index(index, str(part))
        with part.open("r+b") as file:
            file.write(_checksum(file, part.stat().st_size))
        part.replace(path)
    except BaseException as error:  # including SIGTERM: no partial file is left
        with suppress(OSError):
            part.unlink()
        if isinstance(error, OSError | RuntimeError):  # FAISS has no exception class of its own
            raise OutputError(f"cannot write the index {path}: {first_line(error)}.") from error
        raise


def load(path: Path, embed: int, rows: int) -> Any:
    """Read an index of the given width, of `METRIC` and at most ``rows`` rows. Raises DataError for any other
    file.
    """
    import faiss

    try:
        with opened(path) as file:
            size = path.stat().st_size - SUM
            if _checksum(file, size) != file.read(SUM):  # FAISS allocates whatever size a file claims
                raise RuntimeError("it was changed after it was written")
            if not _is_plain(file):
                raise RuntimeError("it is of another kind")
        # Lists "on disk" name a file, anywhere, which FAISS opens and writes to. Where the flag would have
        # them beside the index, a reader without a file name refuses them.
        reader = faiss.BufferedIOReader(faiss.FileIOReader(str(path)))
        with _bounded_room(size):
            index = faiss.read_index(reader, faiss.IO_FLAG_ONDISK_SAME_DIR)
        if (index.d, index.metric_type) != (embed, getattr(faiss, METRIC)) or index.ntotal > rows:
            raise RuntimeError("it is for other vectors")
        kind_of(index), storage_of(index)
    except (AttributeError, DataError, MemoryError, OSError, RuntimeError) as error:
        raise DataError(
            f"{path} is missing, damaged or not a FAISS index: run `dear index build` again to rebuild it."
        ) from error
    return index


@contextmanager
def _bounded_room(size: int) -> Iterator[None]:
    """Context in which FAISS makes no room for more than ``size`` bytes or lists at a time, which a file
    claims. Not before 1.14, which has no such limits.
    """
    import faiss

    with ExitStack() as stack:
        for name in ("vector_byte", "loop"):
            change = getattr(faiss, f"set_deserialization_{name}_limit", None)
            if change is not None:
                stack.callback(change, getattr(faiss, f"get_deserialization_{name}_limit")())
                change(size)
        yield


def _is_plain(file: BinaryIO) -> bool:
    """True for a file that begins as those that `save` writes, in which no index within the index can have
    lists on disk.
    """
    file.seek(0)
    kind = file.read(4)
    if kind == b"IwSq":
        file.seek(QUANTIZER)
        return file.read(4) in QUANTIZERS
    if kind == b"IHNs":
        at = GRAPH
        for size in VECTORS:
            file.seek(at)
            at = min(at + 8 + size * int.from_bytes(file.read(8), "little"), 2**62)
        file.seek(at + NUMBERS)
        return file.read(4) == b"IxSQ"
    return kind == b"IxSQ"


def _checksum(file: BinaryIO, size: int) -> bytes:
    """CRC-32 of the first bytes of a file, which is left positioned after them."""
    crc = 0
    for start in range(0, size, PIECE):
        crc = zlib.crc32(file.read(min(PIECE, size - start)), crc)
    return crc.to_bytes(SUM, "little")


def _sample(vectors: Float[np.ndarray, "row embed"], count: int) -> Float[np.ndarray, "sample embed"]:
    """Evenly spread rows in float32."""
    step = max(1, len(vectors) // max(1, count))
    return np.ascontiguousarray(vectors[::step][:count], dtype=np.float32)
