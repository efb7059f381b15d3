"""Where tests of readers keep their caches."""

from pathlib import Path

import pytest

from dear.data.settings import DataSettings


@pytest.fixture
def settings(tmp_path: Path) -> DataSettings:
    return DataSettings(cache=tmp_path / "cache", workers=1)
