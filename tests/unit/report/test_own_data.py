"""The report on a user's own data: nothing in it that only concerns papers."""

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


def test_published_ablations_stand_beside_public_data_alone() -> None:
    """Not beside a user's data, even if some of it is public, or in a folder named like a task."""
    public = ablated("mixed-paints", None, 0.5, 0.5)
    assert "ablation-inference" in grids([public])
    own = ablated("my tools", None, 0.5, 0.5)
    assert "ablation-inference" not in grids([own])
    assert "ablation-inference" not in grids([public, own])
    named_so = public | {"mistakes": [{"part": ["base"], "folder": "pictures"}]}
    assert "ablation-inference" not in grids([named_so])
