"""The samples as fixtures."""

from typing import Any

import pytest

from tests.unit.report import samples


@pytest.fixture
def records() -> list[dict[str, Any]]:
    return samples.records()
