"""States of the hub's cache that another program, a copy or a stranger has left."""

import os
from pathlib import Path

import pytest

from dear.backbone import hub
from dear.errors import WeightsError
from dear.reading.files import require_inside
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


def test_a_file_that_is_listed_but_not_sent_is_asked_for_again(standin: StandIn) -> None:
    """The client noted that there is none: from then on a model had other pixels, without a word."""
    standin.files[NAME] = {FILE: b"{}"}
    standin.faults.missing = True
    refused(r"lists config\.json of .* and does not send it: try again")
    standin.faults.missing = False
    assert hub.fetch(NAME, [FILE]).read_bytes() == b"{}"


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


def relinked(path: Path, target: Path) -> None:
    path.unlink()
    path.symlink_to(target)


def test_a_link_out_of_the_cache(cached: Path, tmp_path: Path) -> None:
    """Of a cache that was copied from someone; its content was used, and quoted."""
    secret = tmp_path / "secret.json"
    secret.write_text("{}")
    relinked(cached, secret)
    assert str(cached) in refused(r"leads out of its repository's cache: remove it\.")
    assert secret.read_text() == "{}"
    cached.unlink()
    assert hub.fetch(NAME, [FILE]).read_bytes() == b"{}"


def test_a_folder_of_a_commit_that_is_elsewhere(cached: Path, tmp_path: Path) -> None:
    commit = cached.parent
    commit.rename(tmp_path / "elsewhere")
    commit.symlink_to(tmp_path / "elsewhere")
    refused("leads out of its repository's cache")


def test_a_link_whose_content_cannot_be_compared(cached: Path) -> None:
    other = cached.parents[2] / "blobs" / "other"
    other.write_bytes(b"[]")
    relinked(cached, other)
    refused("is a link to a file that is not named after its hash: remove it")


def test_blobs_that_repositories_share(cached: Path) -> None:
    """The client keeps a file once for all repositories, under a hash of another kind."""
    blob, name = cached.resolve(), "ab" * 32
    shared = cached.parents[3] / "blobs" / name[:2] / name
    shared.parent.mkdir(parents=True)
    blob.rename(shared)
    blob.symlink_to(Path("../../blobs", name[:2], name))
    assert hub.fetch(NAME, [FILE]).read_bytes() == b"{}"
    assert require_inside(cached) == cached
    shared.write_bytes(b"[]")
    refused("is damaged: .* It was removed")
    assert hub.fetch(NAME, [FILE]).read_bytes() == b"{}"
    shared.parent.mkdir(exist_ok=True)
    shared.with_name("other").write_bytes(b"{}")
    relinked(cached.resolve(), shared.with_name("other"))
    refused("leads out of its repository's cache")


def test_a_cache_without_links_is_read(cached: Path) -> None:
    """As on Windows, or copied with `cp -rL`: nothing in it states a hash."""
    content = cached.read_bytes()
    cached.unlink()
    cached.write_bytes(content)
    assert hub.fetch(NAME, [FILE]) == cached


def test_a_repository_whose_folder_is_on_another_disk(cached: Path, tmp_path: Path) -> None:
    folder = cached.parents[2]
    folder.rename(tmp_path / "large-disk")
    folder.symlink_to(tmp_path / "large-disk")
    assert hub.fetch(NAME, [FILE]).read_bytes() == b"{}"


def test_a_pipe_is_not_waited_for(cached: Path) -> None:
    cached.unlink()
    os.mkfifo(cached)
    assert str(cached) in refused(r"it is a pipe, not a regular file: remove it\.")
    cached.unlink()
    cached.mkdir()
    refused(r"it is a folder: remove it\.")


def test_a_blob_that_is_a_pipe(cached: Path) -> None:
    blob = cached.resolve()
    blob.unlink()
    os.mkfifo(blob)
    refused(r"it is a pipe, not a regular file: remove it\.")
