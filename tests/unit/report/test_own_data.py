"""The report on a user's own data: nothing in it that only concerns papers."""

from tests.unit.report.samples import record
from tests.unit.report.test_sections import ablated, grids, moved


def test_on_a_users_own_data_nothing_is_published() -> None:
    runs = [ablated(data, one, 0.5, 0.5) for data in ("tools", "toys") for one in (None, "all-mixed")]
    found = grids(runs)
    assert set(found) == {"base-to-novel", "ablation-mask", "ablation-inference"}
    assert found["ablation-mask"].columns == ("Base", "Novel", "HM")
    assert (
        "published" not in (found["ablation-mask"].to_markdown() + found["ablation-mask"].to_latex()).lower()
    )
    transfer = grids([moved("dear", 0.5, {"toys": 0.5})])["cross-dataset"]
    assert "paper" not in transfer.to_markdown()
    assert (
        "paper" in grids([moved("dear", 0.5, {"DTD": 0.5}, name="ImageNet")])["cross-dataset"].to_markdown()
    )


def test_published_numbers_stand_beside_benchmarks_alone() -> None:
    """The inference ablation has a table of benchmarks, and where another ablation was run."""
    drawings = ablated("mixed-paints", None, 0.5, 0.5)
    assert "ablation-inference" not in grids([drawings])
    asked = grids([drawings, ablated("mixed-paints", "all-mixed", 0.5, 0.5)])
    assert {"ablation-inference", "ablation-mask"} <= set(asked)
    assert asked["ablation-mask"].columns == ("Base", "Novel", "HM")
    photographs = ablated("EuroSAT", None, 0.5, 0.5)
    found = grids([photographs, record("EuroSAT", "coop", 0.5, 0.5)])
    assert found["ablation-inference"].columns[3] == "Base, published (11 data sets)"
    assert "ablation-inference" not in grids([drawings, photographs])
