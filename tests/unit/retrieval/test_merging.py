"""What a merge of shards writes, and over what."""

from collections.abc import Iterable
from pathlib import Path

import pytest

from dear.retrieval.build import build_index
from dear.retrieval.catalogue import Catalogue, Entry
from dear.retrieval.scan import Shard
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
