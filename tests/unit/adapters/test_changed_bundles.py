"""A bundle whose configuration was changed after it was written is refused."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from dear.adapters.bundle import Bundle
from dear.adapters.bundle_config import CONFIG
from dear.backbone.clip import Clip
from dear.errors import BundleError
from tests.unit.serving.small import small_predictor


def test_a_changed_configuration_is_refused(small_clip: Clip, tmp_path: Path) -> None:
    """The order of its keys is free."""
    folder = small_predictor(small_clip).bundle.save_pretrained(tmp_path / "bundle")
    file = folder / CONFIG
    config = json.loads(file.read_text())
    for changes in (
        {"classes": [*reversed(config["classes"])]},
        {"temperature": config["temperature"] * 2},
        {"templates": ["no {}"]},
        {"metrics": {"accuracy": 0.99}},
        {"sha256": "0" * 64},
        {"sha256": None},
        {"more": 1},
    ):
        file.write_text(json.dumps(config | changes))
        with pytest.raises(BundleError, match=r"config\.json was changed after the bundle was written"):
            Bundle.from_pretrained(folder)
    file.write_text(json.dumps(dict(reversed(config.items()))))
    bundle = Bundle.from_pretrained(folder)
    file.write_text(json.dumps({key: value for key, value in config.items() if key != "sha256"}))
    with pytest.raises(BundleError, match="was changed"):
        Bundle.from_pretrained(folder)
    replace(bundle, classes=("\udcff", *bundle.classes[1:])).save_pretrained(folder)
    assert Bundle.from_pretrained(folder).classes == ("?", *bundle.classes[1:])
