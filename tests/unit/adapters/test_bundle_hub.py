"""Bundles on the hub: fetched once, compared with their hashes at each use; a backbone elsewhere."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from dear.adapters.bundle import Bundle
from dear.adapters.bundle_files import ADAPTER, CARD, CONFIG
from dear.backbone.clip import Clip
from dear.errors import BundleError
from tests.contract.test_methods import CLASSES
from tests.standin_hub import COMMIT, StandIn
from tests.unit.adapters.test_bundle import fitted


@pytest.fixture
def folder(make_small_clip: Callable[..., Clip], tmp_path: Path) -> Path:
    return fitted("tip-adapter", make_small_clip())[0].save_pretrained(tmp_path / "bundle")


def test_from_the_hub(folder: Path, tmp_path: Path, standin: StandIn) -> None:
    files = {file: (folder / file).read_bytes() for file in (CONFIG, ADAPTER, CARD)}
    standin.files |= {"someone/cards": files, "someone/cards@v2": files}
    for _ in range(2):
        loaded = Bundle.from_pretrained("someone/cards", revision="v2", cache_dir=tmp_path / "elsewhere")
        assert loaded.classes == tuple(CLASSES)
        assert len(standin.downloads()) == 1
    assert all(  # the second file of the commit of the first
        "v2" in path or COMMIT in path
        for _, path, _ in standin.requests
        if path.startswith(("/api/models/", "/someone/"))
    )
    standin.faults.corrupt = True
    with pytest.raises(BundleError, match=rf"{ADAPTER} of someone/cards is damaged: .*It was removed"):
        Bundle.from_pretrained("someone/cards", cache_dir=tmp_path / "cache")


@pytest.mark.parametrize("name", [CONFIG, ADAPTER])
def test_a_bundle_that_was_changed_in_the_hubs_cache(
    folder: Path, tmp_path: Path, standin: StandIn, name: str
) -> None:
    standin.files["someone/cards"] = {file: (folder / file).read_bytes() for file in (CONFIG, ADAPTER)}
    Bundle.from_pretrained("someone/cards", cache_dir=tmp_path / "cache")
    [path] = (tmp_path / "cache").rglob(name)
    path.resolve().write_bytes(path.read_bytes().replace(b'"', b"'", 1))
    with pytest.raises(BundleError, match=rf"{name} of someone/cards in the hub's cache is damaged"):
        Bundle.from_pretrained("someone/cards", cache_dir=tmp_path / "cache")
    assert Bundle.from_pretrained("someone/cards", cache_dir=tmp_path / "cache").classes == tuple(CLASSES)


def test_files_of_two_commits_make_no_bundle(
    folder: Path, tmp_path: Path, standin: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two that the cache has, and of two between which somebody uploads another bundle."""
    standin.files["someone/cards"] = {file: (folder / file).read_bytes() for file in (CONFIG, ADAPTER)}
    Bundle.from_pretrained("someone/cards", cache_dir=tmp_path / "cache")
    adapter = [path for _, path, _ in standin.requests if path.endswith(f"resolve/{COMMIT}/{ADAPTER}")]
    assert adapter
    asked, snapshots = len(standin.requests), (tmp_path / "one", tmp_path / "two")
    paths = iter([snapshots[0] / CONFIG, snapshots[1] / ADAPTER])
    monkeypatch.setattr("dear.backbone.hub.cached", lambda *_: next(paths))
    Bundle.from_pretrained("someone/cards", cache_dir=tmp_path / "cache")
    assert len(standin.requests) > asked


def test_without_the_hub() -> None:
    with pytest.raises(BundleError, match=r"no folder someone/cards.*HF_HUB_OFFLINE"):
        Bundle.from_pretrained("someone/cards")


@pytest.mark.parametrize("key", ["model", "pretrained"])
def test_a_home_that_this_machine_lacks_is_named(folder: Path, key: str) -> None:
    """It was a line that named neither the bundle nor the key."""
    bundle = replace(Bundle.from_pretrained(folder), **{key: "~nosuch/x"})
    with pytest.raises(BundleError, match=rf"the bundle .*: its backbone\.{key} is '~nosuch/x', a folder of"):
        bundle.load_backbone()
