"""Bundles of TAC hold what they need of descriptions, and read no file."""

import json
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import pytest
import torch

from dear.adapters.bundle import Bundle
from dear.adapters.bundle_config import config_hash
from dear.adapters.fit import fit
from dear.adapters.predictor import Predictor
from dear.backbone.clip import Clip
from dear.errors import BundleError, SettingsError
from dear.methods.tac import TacSettings
from dear.training.settings import TrainOptions
from tests.unit.methods.test_tac import OTHERS, SMALL, described, images
from tests.unit.training.world import noise_dataset


def test_a_bundle_needs_no_descriptions(
    small_clip: Clip, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("prepare", "bundle"):
        monkeypatch.setattr(f"dear.adapters.{module}.load_clip", lambda *_args, **_options: small_clip)
    data = noise_dataset()
    file = described(tmp_path, [*data.classnames])
    settings = TacSettings(**SMALL | {"descriptions": str(file)})
    train = TrainOptions(epochs=2)
    bundle = fit(data, tmp_path / "bundle", method="tac", settings=settings, train=train)
    assert bundle.tensors["centres"].shape == (2, 17)
    assert bundle.settings == replace(
        settings, descriptions="templates", descriptions_sha256=sha256(file.read_bytes()).hexdigest()
    )
    file.unlink()
    predictor = Predictor(Bundle.from_pretrained(tmp_path / "bundle"))
    assert torch.equal(predictor.bundle.tensors["centres"], bundle.tensors["centres"])
    assert predictor.logits(images()).shape == (4, 4)
    assert predictor.vocabulary(OTHERS).text.shape == (3, 17)


def test_a_bundle_reads_no_file(small_clip: Clip, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stranger's bundle could print what a file of the user's has, whose keys a message lists."""
    for module in ("prepare", "bundle"):
        monkeypatch.setattr(f"dear.adapters.{module}.load_clip", lambda *_args, **_options: small_clip)
    data, file = noise_dataset(), tmp_path / "mine.json"
    own = TacSettings(**SMALL | {"centres": "own", "text_tokens": 2, "words": "the"})
    train = TrainOptions(epochs=2)
    fit(data, tmp_path / "bundle", method="tac", settings=own, train=train)
    described(tmp_path, [*data.classnames])
    config = tmp_path / "bundle" / "config.json"
    content = json.loads(config.read_text())
    for centres in ("own", "training"):
        content["settings"] |= {"centres": centres, "descriptions": str(file)}
        config.write_text(json.dumps(content | {"sha256": config_hash(content)}))
        with pytest.raises(BundleError, match=r"tac\.centres|descriptions"):
            Bundle.from_pretrained(tmp_path / "bundle")
    with pytest.raises(SettingsError, match="which a bundle does not hold"):
        fit(data, tmp_path / "b", method="tac", settings=replace(own, descriptions=str(file)), train=train)
    assert not (tmp_path / "b").exists()
