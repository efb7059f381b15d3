"""The samples as fixtures."""

from typing import Any

import pytest

from tests.unit.report import samples


@pytest.fixture
def records() -> list[dict[str, Any]]:
    return samples.records()


@pytest.fixture
def material() -> dict[str, Any]:
    """All that a report can show."""
    return {
        "title": "A demo",
        "records": [*samples.records(), samples.retrieval(samples.neighbours())],
        "role_table": samples.role_table(),
        "timings": [{"step": "load", "seconds": 0.25}, {"step": "train", "seconds": 2.5}],
        "notes": ["A small world."],
    }
