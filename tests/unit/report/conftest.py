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
    records = [*samples.records(), samples.retrieval(samples.neighbours())]
    for run in records:
        run["roles"] = run["roles"] and run["roles"] | {"table": samples.role_table()}
    return {"title": "A demo", "records": records, "notes": ["A small world."]}
