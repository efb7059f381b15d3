"""Files of FAISS, which may be a stranger's: a checksum that matches says nothing of what they ask for."""

import resource
import zlib
from pathlib import Path

import numpy as np
import pytest

from dear.errors import DataError
from dear.retrieval import approximate
from dear.retrieval.results import Kind, Storage

faiss = pytest.importorskip("faiss", reason="the extra `retrieval` is not installed")

ROWS = np.eye(8, dtype=np.float32)
QUANTIZER, LENGTH = 53, 37 + 8 + 2 * 8 * 4  # of two centroids of eight values


def content(path: Path, kind: Kind) -> bytes:
    """The file of an index of the rows, without its checksum."""
    approximate.save(approximate.build(ROWS, kind, "float16"), path)
    return path.read_bytes()[:-4]


def seal(path: Path, forged: bytes) -> None:
    path.write_bytes(forged + zlib.crc32(forged).to_bytes(4, "little"))


def with_lists_in(path: Path, other: Path) -> bytes:
    """The same of an IVF index whose lists lie in another file."""
    index = approximate.build(ROWS, "ivf", "float16")
    lists, held = faiss.OnDiskInvertedLists(index.nlist, index.code_size, str(other)), index.invlists
    for number in range(index.nlist):
        lists.add_entries(number, held.list_size(number), held.get_ids(number), held.get_codes(number))
    index.replace_invlists(lists, False)
    approximate.save(index, path)
    return path.read_bytes()[:-4]


@pytest.mark.parametrize(
    "form", ["lists", "storage of a graph", "quantizer", "quantizer of a graph's storage"]
)
def test_lists_in_another_file_are_not_opened(tmp_path: Path, form: str) -> None:
    """FAISS has lists that lie in a file of their own, anywhere, which it opens and writes to."""
    ours, other = tmp_path / "0.faiss", tmp_path / "elsewhere" / "lists"
    other.parent.mkdir()
    forged = with_lists_in(ours, other)
    if "quantizer" in form:
        plain = content(ours, "ivf")
        forged = plain[:QUANTIZER] + forged + plain[QUANTIZER + LENGTH :]
    if "storage" in form:
        graph = content(ours, "hnsw")
        forged = graph[: graph.rfind(b"IxSQ")] + forged
    before = other.read_bytes()
    seal(ours, forged)
    with ours.open("rb") as file:  # FAISS reads an index within an index without the flag that refuses lists
        assert approximate._is_plain(file) == (form == "lists")
    with pytest.raises(DataError, match="damaged or not a FAISS index"):
        approximate.extend(approximate.load(ours, 8, 8), np.concatenate([ROWS] * 20))
    assert other.read_bytes() == before


@pytest.mark.parametrize("kind", ["flat", "ivf", "hnsw"])
@pytest.mark.parametrize("storage", ["float16", "int8"])
def test_all_kinds_are_read_again(tmp_path: Path, kind: Kind, storage: Storage) -> None:
    approximate.save(approximate.build(ROWS, kind, storage), tmp_path / "0.faiss")
    index = approximate.load(tmp_path / "0.faiss", 8, 8)
    nearest = approximate.search(index, ROWS[5], 1, np.ones(8, dtype=bool))
    assert (index.ntotal, nearest.tolist()) == (8, [5])


@pytest.mark.skipif(not hasattr(faiss, "set_deserialization_vector_byte_limit"), reason="an old FAISS")
def test_no_room_is_made_for_what_a_file_claims(tmp_path: Path) -> None:
    ours = tmp_path / "0.faiss"
    plain, length = content(ours, "flat"), (8 * 8 * 2).to_bytes(8, "little")
    assert plain.count(length) == 1
    seal(ours, plain.replace(length, (2**32).to_bytes(8, "little")))
    limit = faiss.get_deserialization_vector_byte_limit()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(DataError, match="damaged or not a FAISS index"):
        approximate.load(ours, 8, 8)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 2**20  # KiB
    assert faiss.get_deserialization_vector_byte_limit() == limit
