"""Records of one method from before and after a setting was added: the older ones lack its key."""

from dataclasses import asdict
from typing import Any

import pytest

from dear.errors import DataError
from dear.methods.registry import METHODS
from dear.report.base_to_novel import published_grid
from dear.report.protocols import tables_of
from dear.training.settings import TrainSettings
from tests.unit.report.samples import record, report_html

NEW = {"method": "tokens", "train": "crop"}
"""A setting of each part, as if it were new: the dear of the older record did not have it."""


def runs(part: str, **changes: Any) -> list[dict[str, Any]]:
    """Seed 1 without the new setting of a part, seed 2 with it, at its default or changed."""
    now = {"method": asdict(METHODS["dear"].settings()), "train": asdict(TrainSettings())}
    before = {name: value for name, value in now[part].items() if name != NEW[part]}
    older, newer = now | {part: before}, now | {part: now[part] | changes}
    return [
        record("tools", "dear", 0.5, 0.5, seed=1, settings=older),
        record("tools", "dear", 0.7, 0.5, seed=2, settings=newer),
    ]


@pytest.mark.parametrize("part", NEW)
def test_a_setting_that_an_older_record_lacks_has_its_default(part: str) -> None:
    (grid,) = [grid for grid in tables_of(runs(part)) if grid.name == "base-to-novel"]
    (row,) = [row for row in grid.rows if row.label == "Tools: dear"]
    # Bases of 50 and 70: mean 60, deviation 10 * sqrt(2).
    assert row.cells[0] is not None
    assert row.cells[0].value.startswith("60.00")


@pytest.mark.parametrize(("part", "message"), [("method", "tokens: 1, 4"), ("train", "crop: 0.5, 0.2")])
def test_it_does_not_mix_with_another_value(part: str, message: str) -> None:
    changes = {"tokens": 4} if part == "method" else {"crop": 0.2}
    with pytest.raises(DataError, match=message):
        tables_of(runs(part, **changes))


@pytest.mark.parametrize(("part", "row"), [("method", "tokens"), ("train", "train.crop")])
def test_the_page_shows_one_value_of_it(part: str, row: str) -> None:
    text = report_html(title="t", records=runs(part))
    default = {"tokens": "1", "train.crop": "0.5"}[row]
    (line,) = [line for line in text.splitlines() if f">{row}<" in line]
    assert f">{default}<" in line
    assert "null" not in line


def test_published_numbers_are_found_for_a_record_without_the_base_of_atprompt() -> None:
    """The paper prints ATPrompt on CoOp, its default, only."""

    def compared(**settings: Any) -> bool:
        weights = {"model": "ViT-B-16", "pretrained": "openai", "sha256": "cd" * 32}
        parts = {"method": settings, "train": {}}
        run = record("DescribableTextures", "atprompt", 0.8, 0.6, weights=weights, settings=parts)
        return published_grid([run]) is not None

    assert compared()
    assert compared(base="coop")
    assert not compared(base="maple")
