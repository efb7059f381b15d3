"""States of the hub's cache that another program, a copy or a stranger has left."""

import os
from pathlib import Path

import pytest

from dear.backbone import hub
from dear.errors import WeightsError
from tests.standin_hub import StandIn

NAME, FILE = "someone/clip", "config.json"


@pytest.fixture
def cached(standin: StandIn) -> Path:
    """A file of a repository in the cache."""
    standin.files[NAME] = {FILE: b"{}"}
    return hub.fetch(NAME, [FILE])


def refused(match: str) -> str:
    with pytest.raises(WeightsError, match=match) as caught:
        hub.fetch(NAME, [FILE])
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_branch_that_is_not_in_utf_8(cached: Path) -> None:
    branch = cached.parents[2] / "refs" / "main"
    branch.write_bytes(b"\xff\xfe")
    assert str(branch) in refused(r"names no commit \(.*can't decode byte 0xff.*\): remove it\.")
    branch.unlink()
    assert hub.fetch(NAME, [FILE]).read_bytes() == b"{}"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_cache_without_permission(cached: Path) -> None:
    for folder in (cached.parents[2] / "refs", cached.parents[1]):
        folder.chmod(0)
        try:
            refused("remove ")
        finally:
            folder.chmod(0o700)


def test_a_cache_that_is_no_folder(cached: Path) -> None:
    snapshots = cached.parents[1]
    snapshots.rename(snapshots.with_name("other"))
    snapshots.write_text("")
    assert str(snapshots.parent) in refused(f"the hub's cache of {NAME} cannot be read .*: remove ")
