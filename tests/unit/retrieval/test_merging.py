"""What a merge of shards writes, and over what."""

from collections.abc import Callable, Iterable
from contextlib import closing
from pathlib import Path

import pytest

from dear.errors import DataError, OutputError
from dear.retrieval.build import build_index
from dear.retrieval.catalogue import Catalogue, Entry
from dear.retrieval.scan import Shard, Stamp
from dear.retrieval.shards import merge_index
from tests.unit.retrieval.solid import Plain, gallery, paint


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    """Two shards of 26 files."""
    folder = gallery(tmp_path / "images")
    for width in range(50, 68):
        paint(folder / f"{width}.png", "green", width)
    for number in (1, 2):
        build_index(Plain(), folder, tmp_path / "shards", shard=Shard(number, 2))
    return tmp_path / "shards"


def interrupted(build: Callable[[], object], at: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(at, lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            build()


def stamps(index: Path) -> dict[str, Stamp]:
    with closing(Catalogue.open(index)) as catalogue:
        return catalogue.stamps()


@pytest.mark.parametrize("merge_before", [False, True])
def test_an_index_of_a_build_that_was_interrupted_stays(
    tmp_path: Path, shards: Path, merge_before: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A merge took it for one of its own and emptied it, also where the build went on with what a merge had
    left.
    """
    folder, out = tmp_path / "images", tmp_path / "index"
    if merge_before:
        interrupted(lambda: merge_index(shards, out), "dear.retrieval.shards.finish", monkeypatch)
    interrupted(lambda: build_index(Plain(), folder, out), "dear.retrieval.build.finish", monkeypatch)
    before = stamps(out)
    assert len(before) == 26
    with pytest.raises(OutputError, match="is not finished: run its `dear index build` again, remove it, or"):
        merge_index(shards, out)
    assert stamps(out) == before
    assert build_index(Plain(), folder, out).encoded == 0


def test_many_files_are_written_together(
    tmp_path: Path, shards: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each was alone, which took longer than to write it."""
    sizes, put = list[int](), Catalogue.put

    def counted(catalogue: Catalogue, entries: Iterable[Entry]) -> None:
        sizes.append(len(together := [*entries]))
        put(catalogue, together)

    monkeypatch.setattr(Catalogue, "put", counted)
    monkeypatch.setattr("dear.retrieval.shards.WRITTEN_AT_ONCE", 11)
    merge_index(shards, tmp_path / "merged")
    assert sizes == [11, 11, 4]


def test_vectors_without_their_index_stay(tmp_path: Path, shards: Path) -> None:
    """A build or a merge wrote over them."""
    theirs = tmp_path / "index" / "vectors-1" / "0.f16"
    theirs.parent.mkdir(parents=True)
    theirs.write_bytes(b"kept")
    with pytest.raises(OutputError, match=r"holds vectors without their index, in vectors-1: remove"):
        merge_index(shards, tmp_path / "index")
    with pytest.raises(OutputError, match=r"holds vectors without their index, in vectors-1: remove"):
        build_index(Plain(), tmp_path / "images", tmp_path / "index")
    (shards / "shard-1-of-2" / "index.sqlite").unlink()
    with pytest.raises(DataError):
        merge_index(shards, tmp_path / "index")
    assert theirs.read_bytes() == b"kept"


def test_a_merge_that_fails_leaves_nothing(
    tmp_path: Path, shards: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its vectors stayed."""

    def fail(_: object) -> None:
        assert (tmp_path / "merged" / "vectors-1" / "0.f16").stat().st_size
        raise DataError("a shard changed meanwhile.")

    monkeypatch.setattr("dear.retrieval.shards.finish", fail)
    with pytest.raises(DataError, match="changed meanwhile"):
        merge_index(shards, tmp_path / "merged")
    assert not (tmp_path / "merged").exists()
