"""The small CLIP in place of every one that would be loaded."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from dear.backbone.clip import Clip


@pytest.fixture
def only_clip(small_clip: Clip, monkeypatch: pytest.MonkeyPatch) -> Clip:
    """The small CLIP, which `fit`, bundles and runs load whatever is named. An image is left out once."""
    from tests.helpers.clips import load_always

    load_always(small_clip, monkeypatch)
    return small_clip


@pytest.fixture
def roles(only_clip: Clip, tmp_path: Path) -> Path:
    """The file of a role table of `only_clip`."""
    from tests.helpers.methods import role_table

    role_table(only_clip).save(tmp_path / "roles.json")
    return tmp_path / "roles.json"
