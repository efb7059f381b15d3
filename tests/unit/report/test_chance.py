"""The accuracy of guessing in the tables of all protocols."""

from tests.unit.report.samples import record, report_html
from tests.unit.report.test_sections import ablated, cells, few, grids, moved


def test_chance_stands_beside_every_accuracy() -> None:
    """Seven classes: four base and three novel ones; two of a target have test images."""
    seven = [f"class {number}" for number in range(7)]
    runs = [record("tools", "dear", 0.8, 0.6), record("toys", "dear", 0.8, 0.6)]
    runs[0]["dataset"]["classes"] = seven
    found = grids(runs)
    hm = 2 / (4 + 3)
    assert cells(found["base-to-novel"], "Tools: chance") == ["25.00", "33.33", f"{100 * hm:.2f}"]
    assert cells(found["base-to-novel"], "Toys: chance") == ["100.00"] * 3
    assert cells(found["base-to-novel"], "Average: chance")[:2] == ["62.50", "66.67"]
    both = [*runs, *(one | {"method": "coop", "key": f"{one['key']} coop"} for one in runs)]
    assert cells(grids(both)["base-to-novel-methods"], "chance")[:2] == ["62.50", "66.67"]
    assert "25.00 / 33.33" in report_html(title="", records=runs)  # below the HM
    some = [few("tools", "dear", 1, 0.4), few("toys", "dear", 1, 0.8)]
    some[0]["dataset"]["classes"] = seven
    grid = grids(some)["few-shot"]
    assert [cells(grid, f"{name}: chance") for name in ("Tools", "Average")] == [["14.29"], ["32.14"]]
    away = moved("dear", 0.5, {"toys": 0.3})
    away["results"]["targets"]["toys"]["per_class"] = {"a": 0.1, "b": 0.5}
    assert cells(grids([away])["cross-dataset"], "chance") == ["50.00", "50.00", "50.00"]
    shared = ["tools", "toys"]
    other = [ablated(name, variant, 0.5, 0.5) for name in shared for variant in (None, "CE")]
    assert cells(grids(other)["ablation-loss"], "chance")[:3] == ["100.00"] * 3
    for one in runs:
        del one["dataset"]["classes"]
    assert "chance" not in grids(runs)["base-to-novel"].to_markdown()
