"""The report on a user's own data: nothing in it that only concerns papers."""

from tests.unit.report.samples import record
from tests.unit.report.test_sections import ablated, grids, moved


def test_on_a_users_own_data_nothing_is_published() -> None:
    runs = [ablated(data, one, 0.5, 0.5) for data in ("tools", "toys") for one in (None, "all-mixed")]
    found = grids(runs)
    assert set(found) == {"base-to-novel", "ablation-mask"}
    assert found["ablation-mask"].columns == ("Base", "Novel", "HM")
    assert (
        "published" not in (found["ablation-mask"].to_markdown() + found["ablation-mask"].to_latex()).lower()
    )
    transfer = grids([moved("dear", 0.5, {"toys": 0.5})])["cross-dataset"]
    assert "paper" not in transfer.to_markdown()
    assert (
        "paper" in grids([moved("dear", 0.5, {"DTD": 0.5}, name="ImageNet")])["cross-dataset"].to_markdown()
    )


def test_an_inference_ablation_that_nobody_asked_for_is_of_public_data_alone() -> None:
    """Not beside a user's data, even if some of it is public, or in a folder named like a task."""
    public = ablated("mixed-paints", None, 0.5, 0.5)
    assert "ablation-inference" in grids([public])
    own = ablated("my tools", None, 0.5, 0.5)
    assert "ablation-inference" not in grids([own])
    assert "ablation-inference" not in grids([public, own])
    named_so = public | {"dataset": public["dataset"] | {"left_out": 0}}
    assert "ablation-inference" not in grids([named_so])


def test_published_numbers_stand_beside_benchmarks_alone() -> None:
    """Drawings have the inference ablation where DeAR alone or another ablation was run."""
    drawings, peer = ablated("mixed-paints", None, 0.5, 0.5), record("mixed-paints", "coop", 0.5, 0.5)
    assert grids([drawings])["ablation-inference"].columns == ("Base", "Novel", "HM")
    assert "ablation-inference" not in grids([drawings, peer])
    asked = grids([drawings, ablated("mixed-paints", "all-mixed", 0.5, 0.5), peer])
    assert {"ablation-inference", "ablation-mask"} <= set(asked)
    assert asked["ablation-mask"].columns == ("Base", "Novel", "HM")
    photographs = grids([ablated("EuroSAT", None, 0.5, 0.5), record("EuroSAT", "coop", 0.5, 0.5)])
    assert photographs["ablation-inference"].columns[3] == "Base, published (11 data sets)"
    mixed = grids([drawings, ablated("EuroSAT", None, 0.5, 0.5)])
    assert mixed["ablation-inference"].columns == ("Base", "Novel", "HM")
