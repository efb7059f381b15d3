"""Bundles on the hub: both files of one commit, fetched once; a backbone elsewhere."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

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
        "v2" in path or COMMIT in path for _, path, _ in standin.requests if path.startswith("/someone/")
    )
    standin.faults.corrupt = True
    with pytest.raises(BundleError, match=rf"{ADAPTER} was damaged"):
        Bundle.from_pretrained("someone/cards", cache_dir=tmp_path / "cache")


def test_to_the_hub_and_back(folder: Path, standin: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_XET", True)  # which has no stand-in
    bundle = Bundle.from_pretrained(folder)
    assert bundle.push_to_hub("someone/cards") == f"{standin.endpoint}/someone/cards/commit/{COMMIT}"
    sent = standin.files["someone/cards"]
    assert sorted(sent) == sorted([ADAPTER, CARD, CONFIG])
    assert sent[ADAPTER] == (folder / ADAPTER).read_bytes()
    loaded = Bundle.from_pretrained("someone/cards")
    assert loaded.config() == bundle.config()
    assert all(torch.equal(loaded.tensors[name], tensor) for name, tensor in bundle.tensors.items())


def test_without_the_hub() -> None:
    with pytest.raises(BundleError, match=r"no folder someone/cards.*HF_HUB_OFFLINE"):
        Bundle.from_pretrained("someone/cards")


@pytest.mark.parametrize("key", ["model", "pretrained"])
def test_a_home_that_this_machine_lacks_is_named(folder: Path, key: str) -> None:
    """It was a line that named neither the bundle nor the key."""
    bundle = replace(Bundle.from_pretrained(folder), **{key: "~nosuch/x"})
    with pytest.raises(BundleError, match=rf"the bundle .*: its backbone\.{key} is '~nosuch/x', a folder of"):
        bundle.load_backbone()
