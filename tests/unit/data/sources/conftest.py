"""A hub of data sets on this machine."""

from pathlib import Path
from typing import Any

import pytest

from tests.standin_hub import StandIn

CARD = b"---\nlicense: mit\n---\nwritten by the hub\n"


@pytest.fixture
def forged(standin: StandIn, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> StandIn:
    datasets: Any = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_ENDPOINT", standin.endpoint)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache" / "datasets"))
    standin.files["someone/photos"] = {"README.md": CARD}
    return standin
