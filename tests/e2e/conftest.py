"""A small data set, the small CLIP with its role table, and a folder for the results."""

import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from dear.backbone.clip import Clip
from tests.unit.training.world import role_table


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """A data set in CoOp's layout: 4 classes, 2 images each to train on and 1 to test on, in one plain
    colour each.
    """
    folder = tmp_path / "photos"
    rows: dict[str, list[Any]] = {"train": [], "val": [], "test": []}
    for label, name in enumerate(("red", "green", "blue", "sea")):
        for number in range(3):
            path = f"{name}/{number}.png"
            (folder / "images" / name).mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (29, 23), (60 * label, 30 * number, 99)).save(folder / "images" / path)
            rows["train" if number < 2 else "test"].append([path, label, name])
    (folder / "split_zhou_Photos.json").write_text(json.dumps(rows))
    return folder


@pytest.fixture
def small(small_clip: Clip, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The small CLIP in place of whatever the command loads; returns the file of its role table."""
    monkeypatch.setattr("dear.evaluation.runs.load_clip", lambda *_args, **_options: small_clip)
    path = tmp_path / "roles.json"
    role_table(small_clip).save(path)
    return path


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"
