"""Bundles on the hub: fetched once, compared with their hashes at each use; a backbone elsewhere."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from dear.adapters.bundle import Bundle
from dear.adapters.bundle_files import ADAPTER, CARD, CONFIG
from dear.backbone.clip import Clip
from dear.errors import BundleError
from dear.limits import LIMITS, Limit
from tests.contract.test_methods import CLASSES
from tests.standin_hub import COMMIT, StandIn, sha256
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


def test_to_the_hub_and_back(folder: Path, standin: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the client of Xet installed, which is not used."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_XET", False)
    bundle = Bundle.from_pretrained(folder)
    assert bundle.push_to_hub("someone/cards") == f"{standin.endpoint}/someone/cards/commit/{COMMIT}"
    sent = standin.files["someone/cards"]
    assert sorted(sent) == sorted([ADAPTER, CARD, CONFIG])
    assert sent[ADAPTER] == (folder / ADAPTER).read_bytes()
    assert not any("xet" in path for _, path, _ in standin.requests)
    loaded = Bundle.from_pretrained("someone/cards")
    assert loaded.config() == bundle.config()
    assert all(torch.equal(loaded.tensors[name], tensor) for name, tensor in bundle.tensors.items())


def answers() -> list[str]:
    """Parts of the paths of all answers to an upload."""
    return ["/repos/create", "/validate-yaml", "/preupload/", "/objects/batch", "/verify", "/commit/"]


@pytest.mark.parametrize("packed", answers())
def test_no_answer_to_an_upload_is_unpacked(folder: Path, standin: StandIn, packed: str) -> None:
    """682 bytes, packed twice, took 4,164 MiB."""
    standin.faults.packed = packed
    with pytest.raises(BundleError, match="packs its answers about the bundle someone/cards"):
        Bundle.from_pretrained(folder).push_to_hub("someone/cards")
    assert packed in standin.requests[-1][1]


@pytest.mark.parametrize("name", ["hub_bytes", "hub_values"])
def test_an_answer_to_an_upload_is_not_read_to_its_end(
    folder: Path, standin: StandIn, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr("dear.limits.LIMITS", {**LIMITS, name: Limit(1, name)})
    with pytest.raises(BundleError, match=rf"an answer of the hub about .* {name}, above the limit of 1"):
        Bundle.from_pretrained(folder).push_to_hub("someone/cards")
    assert standin.requests[-1][1] == "/api/repos/create"


@pytest.mark.parametrize("disabled", [False, True])
def test_the_token_of_an_upload_goes_to_the_hub_only(
    folder: Path, standin: StandIn, monkeypatch: pytest.MonkeyPatch, disabled: bool
) -> None:
    """Without the client of Xet it went to the address that was named for verifying."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_XET", disabled)
    standin.faults.verify = f"{standin.cdn}/elsewhere"
    Bundle.from_pretrained(folder).push_to_hub("someone/cards", token="hf_mine")
    asked = {path: token for (_, path, _), token in zip(standin.requests, standin.tokens, strict=True)}
    assert {path for path, token in asked.items() if token is None} == {
        "/", f"/lfs/{sha256(standin.files['someone/cards'][ADAPTER])}", "/elsewhere",
    }  # fmt: skip
    assert {token for token in asked.values() if token} == {"Bearer hf_mine"}


def test_what_a_hub_says_of_an_upload_controls_no_terminal(folder: Path, standin: StandIn) -> None:
    standin.faults.warning = "\x1b]0;owned\x07\n" + "a" * 5000
    standin.faults.commit_url = "\x1b[2J" + "a" * 5000
    with pytest.warns(UserWarning, match="while validating metadata") as shown:
        address = Bundle.from_pretrained(folder).push_to_hub("someone/cards")
    for text in (address, *(str(warning.message) for warning in shown)):
        assert text.isprintable()
        assert len(text) <= 1000


def test_without_the_hub() -> None:
    with pytest.raises(BundleError, match=r"no folder someone/cards.*HF_HUB_OFFLINE"):
        Bundle.from_pretrained("someone/cards")


@pytest.mark.parametrize("key", ["model", "pretrained"])
def test_a_home_that_this_machine_lacks_is_named(folder: Path, key: str) -> None:
    """It was a line that named neither the bundle nor the key."""
    bundle = replace(Bundle.from_pretrained(folder), **{key: "~nosuch/x"})
    with pytest.raises(BundleError, match=rf"the bundle .*: its backbone\.{key} is '~nosuch/x', a folder of"):
        bundle.load_backbone()
