"""Tables of all protocols, from records made by hand."""

import csv
import io
from typing import Any

import pandas as pd
import pytest
from rich.console import Console

from dear.errors import DataError
from dear.report.grid import Cell, Grid, GridRow, marked
from dear.report.protocols import tables_of
from dear.report.protocols.base_to_novel import Results, paired_grid, peers_grid, published_grid
from tests.helpers.errors import refuses
from tests.helpers.records import ablated, few, moved, record, report_html, score

LAION = {"model": "ViT-B-16", "pretrained": "laion2b_s34b_b88k", "sha256": "cd" * 32}
OPENAI = LAION | {"pretrained": "openai"}


def cells(grid: Grid, label: str) -> list[str]:
    (row,) = [row for row in grid.rows if row.label == label]
    return ["" if cell is None else cell.value for cell in row.cells]


def grids(records: list[dict[str, Any]]) -> dict[str, Grid]:
    return {grid.name: grid for grid in tables_of(records)}


def test_ablations_stand_beside_the_published_numbers() -> None:
    records = [
        ablated(data, variant, base, novel)
        for data, shift in (("EuroSAT", 0.0), ("UCF101", 0.1))
        for variant, base, novel in ((None, 0.8 - shift, 0.6), ("all-mixed", 0.9 - shift, 0.4 + shift))
    ]
    found = grids(records)
    assert set(found) == {"base-to-novel", "ablation-mask", "ablation-inference"}
    mask = found["ablation-mask"]
    assert mask.columns[:4] == ("Base", "Novel", "HM", "Base, published (11 data sets)")
    # 2 * 75 * 60 / 135 and 2 * 85 * 45 / 130
    assert cells(mask, "roles (DeAR)") == ["75.00", "60.00", "66.67", "85.94", "79.73", "82.72"]
    assert cells(mask, "all-mixed") == ["85.00", "45.00", "58.85", "85.31", "76.98", "80.93"]
    assert cells(mask, "shuffled") == [""] * 6  # printed of ImageNet alone, of which there is no run
    inference = found["ablation-inference"]
    # The paper's decoupled row is fused on base classes: it has the accuracy of the row below there.
    assert cells(inference, "decoupled on novel") == ["75.00", "40.00", "52.17", "85.94", "78.50", "82.05"]
    assert cells(inference, "class feature alone")[:2] == ["65.00", "40.00"]
    assert cells(inference, "fusion (DeAR)")[:2] == ["75.00", "60.00"]
    # The main table holds the method itself, not its ablations.
    assert [row.label for row in found["base-to-novel"].rows if "chance" not in row.label] == [
        "Eurosat: dear",
        "Ucf101: dear",
        "Average: dear",
    ]


def test_few_shot_by_hand() -> None:
    records = [few("tools", "zero-shot", 0, 0.5), few("toys", "zero-shot", 0, 0.7)]
    for data, by in (("tools", 0.1), ("toys", 0.0)):
        records += [few(data, "dear", shots, 0.6 + by * shots, seed) for shots in (1, 4) for seed in (1, 2)]
    grid = grids(records)["few-shot"]
    assert grid.columns == ("0 shots", "1 shot", "4 shots")
    assert cells(grid, "Tools: dear") == ["", "70.00", "100.00"]
    assert cells(grid, "Average: dear") == ["", "65.00", "80.00"]
    assert cells(grid, "Average: zero-shot") == ["60.00", "", ""]
    assert next(row for row in grid.rows if row.label == "Tools: dear").cells[1] == Cell(
        pytest.approx(70), pytest.approx(0), 2
    )


def test_the_page_of_few_shot_runs_begins_with_the_most_shots() -> None:
    records = [few("tools", "zero-shot", 0, 0.5), few("tools", "dear", 1, 0.9), few("tools", "dear", 4, 0.6)]
    assert "dear: accuracy with 4 shots 60.0%, 10.0 points above zero-shot (50.0%)." in report_html(
        title="", records=records
    )
    apart = [few("tools", "dear", 1, 0.4), few("toys", "dear", 2, 0.8)]
    assert "Some runs of dear are missing" in report_html(title="", records=apart)


def test_transfer_leaves_the_source_out_of_the_average() -> None:
    records = [
        moved("zero-shot", 0.5, {"toys": 0.2, "cars": 0.4}), moved("dear", 0.9, {"toys": 0.3, "cars": 0.6}),
    ]  # fmt: skip
    grid = grids(records)["cross-dataset"]
    assert grid.columns == ("Tools (source)", "Average", "Toys", "Cars")
    assert cells(grid, "dear") == ["90.00", "45.00", "30.00", "60.00"]
    assert [row.label for row in grid.rows] == ["zero-shot", "dear"]
    assert not any(row.published for row in grid.rows)


def test_transfer_shows_fusion_too_where_it_differs_and_never_marks_it() -> None:
    records = [moved("dear", 0.5, {"toys": 0.3}, fused=0.2), moved("zero-shot", 0.4, {"toys": 0.2})]
    grid = grids(records)["cross-dataset"]
    others = ["dear, class feature alone", "dear, fused"]
    assert [row.label for row in grid.rows] == ["zero-shot", "dear", *others]
    assert cells(grid, "dear") == ["70.00", "30.00", "30.00"]
    assert cells(grid, others[0]) == ["50.00", "30.00", "30.00"]
    assert cells(grid, others[1]) == ["70.00", "50.00", "50.00"]
    assert {cell and cell.mark for row in grid.rows[2:] for cell in row.cells} == {None}
    assert grid.rows[1].cells[0] == Cell(pytest.approx(70.0), mark="best")


def test_peers_are_scored_in_transfer_as_their_authors_do() -> None:
    """MMRL fuses on the source and scores targets by the class feature alone; DeAR+ fuses on both."""
    plus = moved("dear+", 0.4, {"toys": 0.2}, fused=0.1)
    plus["results"]["targets"]["toys"] = score(0.3, 0.2) | {"fused": 0.3}
    grid = grids([moved("mmrl", 0.5, {"toys": 0.3}, fused=0.2), plus])["cross-dataset"]
    assert cells(grid, "mmrl") == ["70.00", "30.00", "30.00"]
    assert cells(grid, "mmrl, class feature alone") == ["50.00", "30.00", "30.00"]
    assert cells(grid, "mmrl, fused") == ["70.00", "50.00", "50.00"]
    assert cells(grid, "dear+") == ["50.00", "30.00", "30.00"]
    assert cells(grid, "dear+, class feature alone") == ["40.00", "20.00", "20.00"]
    assert "dear+, fused" not in {row.label for row in grid.rows}


def test_earlier_records_of_methods_with_several_features_are_refused() -> None:
    """Their targets were scored by the name of the method, so that a class derived from Dear had another
    accuracy than Dear. With one feature there is nothing to tell apart.
    """
    records = [moved("coop", 0.5, {"toys": 0.3}), moved("dear", 0.5, {"toys": 0.3})]
    for results in [run["results"] for run in records]:
        for part in (results["source"], *results["targets"].values()):
            del part["fused"]
    assert cells(grids(records)["cross-dataset"], "coop") == ["50.00", "30.00", "30.00"]
    records[1]["results"]["targets"]["toys"]["decoupled"] = 0.2
    refuses(DataError, "dear is of an earlier version", grids, records)


def test_sources_of_transfer_are_not_averaged() -> None:
    records = [moved("dear", 0.5, {"toys": 0.2}), moved("dear", 0.9, {"toys": 0.2}, name="cars")]
    records[1]["key"] = "another"
    with pytest.raises(DataError, match=r"mix different sources \(tools, cars\)"):
        tables_of(records)


def test_published_rows_stand_under_the_papers_data_sets() -> None:
    records = [moved("dear", 0.7, {"OxfordFlowers": 0.5, "EuroSAT": 0.4}, name="ImageNet")]
    grid = grids(records)["cross-dataset"]
    printed = [row for row in grid.rows if row.published and row.label == "DeAR"]
    assert [cell and cell.value for cell in printed[0].cells] == ["71.50", None, "73.80", "53.50"]
    assert "DeAR (published)" in grid.to_markdown()


def test_differences_to_published_numbers() -> None:
    runs = [
        record("DescribableTextures", "dear", base, 0.75, seed=seed, weights=LAION)
        for seed, base in ((1, 0.83), (2, 0.85), (3, 0.84))
    ]
    grid = published_grid(Results(runs))
    (row,) = grid.rows
    base, printed, difference = row.cells[:3]
    assert (base and base.value, printed and printed.value) == ("84.00", "83.90")
    # Three seeds, two degrees of freedom: 4.3027 * sd / sqrt(3), sd = 1.
    assert difference == Cell(pytest.approx(0.1), pytest.approx(2.4841, abs=1e-3), 3)
    assert "HM difference, half of 95% interval" in grid.to_csv().decode().splitlines()[0]
    assert any("Slip: DeAR, DTD: the published HM is 79.62" in note for note in grid.notes)
    two = published_grid(Results(runs[:2]))
    assert two.rows[0].cells[2] == Cell(pytest.approx(0.1), None, 2)


def test_the_average_of_all_eleven_stands_beside_both_tables_of_the_paper() -> None:
    """Table 2 has 85.94 / 79.73 / 82.72 for DeAR, the supplement's Table 3 has 85.62 / 79.77 / 82.71."""
    names = [
        "ImageNet", "Caltech101", "OxfordPets", "StanfordCars", "OxfordFlowers", "Food101", "FGVCAircraft",
        "SUN397", "DescribableTextures", "EuroSAT", "UCF101",
    ]  # fmt: skip
    runs = [
        record(name, "dear", 0.86 + 0.01 * s, 0.80, seed=s, weights=LAION)
        for name in names
        for s in (1, 2, 3)
    ]
    grid = published_grid(Results(runs))
    printed = {
        row.label: [c and c.value for c in row.cells[:3]] for row in grid.rows if "Average" in row.label
    }
    assert printed == {
        "Average: dear": ["88.00", "85.94", "2.06"],
        "Average: dear (supplement, Table 3)": ["88.00", "85.62", "2.38"],
    }
    # The seeds' averages are 87, 88 and 89: sd 1, half width 4.3027 / sqrt(3).
    average = next(row for row in grid.rows if row.label == "Average: dear")
    assert average.cells[2] == Cell(pytest.approx(2.06), pytest.approx(2.4841, abs=1e-3), 3)
    assert "Imagenet: dear (supplement, Table 3)" in [row.label for row in grid.rows]
    told = " ".join(grid.notes)
    assert "± 0.21, ± 0.11, ± 0.18" in told
    assert "+2.57 over MMRL" in told
    # 2 * 85.62 * 79.77 / (85.62 + 79.77) = 82.59
    assert "the published HM is 82.71; its own base and novel give 82.59" in told
    peers = peers_grid(Results(runs))
    assert {*peers.groups} == {"Average", *(run["dataset"]["title"] for run in runs)}
    average = peers.groups["Average"]
    assert len(average) == 1 + 13  # ours, and the thirteen rows of Table 2
    assert [cell and cell.value for cell in average["MMRL (published)"].cells] == ["85.68", "77.16", "81.20"]
    dear = average["dear"].cells[0]
    assert dear is not None
    assert (dear.value, average["MMRL (published)"].cells[0].mark) == ("88.00", None)  # type: ignore[union-attr]
    assert "Average" not in peers_grid(Results(runs[3:])).groups
    lacking = published_grid(Results(runs[3:]))
    assert not any("Average" in row.label for row in lacking.rows)


def test_numbers_of_imagenet_stand_beside_ours_of_imagenet() -> None:
    """Shuffled roles are published on ImageNet alone, 70.85 ± 0.25."""
    runs = [
        ablated(name, variant, base, 0.5, weights=LAION)
        for variant, base in ((None, 0.75), ("shuffled", 0.5))
        for name, base in (("ImageNet", base), ("EuroSAT", 1.0))
    ]
    grid = grids(runs)["ablation-mask"]
    row = next(row for row in grid.rows if row.label == "shuffled")
    values = {name: cell for name, cell in zip(grid.columns, row.cells, strict=True) if cell}
    assert values["HM (ImageNet)"].value == "50.00"
    assert values["HM, published (ImageNet)"] == Cell(70.85, 0.25, seeds=0)
    table = pd.read_csv(io.BytesIO(grid.to_csv()))
    assert table["HM seeds"].dropna().eq(1).all()
    assert table["HM, published (ImageNet) seeds"].isna().all()  # the paper does not say how many
    assert values["HM"].value == "60.00"  # of base (50 + 100) / 2 and novel 50
    without = grids([run for run in runs if run["dataset"]["name"] == "EuroSAT"])["ablation-mask"]
    assert not any("ImageNet" in column for column in without.columns)


@pytest.mark.parametrize(
    ("method", "changes", "compared"),
    [
        ("dear", {"weights": LAION}, True),
        ("dear", {}, False),  # the tiny CLIP is not what the numbers were published for
        ("dear", {"weights": LAION, "shots": 4}, False),
        ("coop", {"weights": LAION}, False),  # those of the peers are of OpenAI's weights
        ("coop", {"weights": OPENAI}, True),
        ("coop", {"weights": OPENAI, "variant": "mine"}, False),
        ("atprompt", {"weights": OPENAI, "variant": "CoOp", "settings": {"method": {"base": "coop"}}}, True),
        (
            "atprompt",
            {"weights": OPENAI, "variant": "MaPLe", "settings": {"method": {"base": "maple"}}},
            False,
        ),
    ],
)
def test_what_is_compared_with_published_numbers(
    method: str, changes: dict[str, Any], compared: bool
) -> None:
    run = record("DescribableTextures", method, 0.5, 0.5, **changes)
    assert bool(published_grid(Results([run])).rows) == compared
    if not run["weights"]["model"].startswith("ViT-B-16"):
        assert not peers_grid(Results([run])).rows


def test_methods_are_compared_over_shared_data_sets() -> None:
    records = [record(data, "zero-shot", 0.5, 0.5) for data in ("tools", "toys", "cars")]
    records += [record("tools", "dear", 0.6, 0.5), record("toys", "dear", 0.8, 0.5)]
    grid = paired_grid(Results(records))
    assert grid.rows[0].label == "dear − zero-shot"
    # Differences 10 and 30: their interval would be 20 ± 127.
    assert grid.rows[0].cells[0] == Cell(pytest.approx(20), None, 2)
    assert grid.notes[1].startswith("No interval over fewer than 3 data sets")
    assert paired_grid(Results(records[:3])).rows == ()
    grid = paired_grid(Results([*records, record("cars", "dear", 0.7, 0.5)]))
    # Differences 10, 30 and 20: mean 20, sd 10, half width 4.3027 * 10 / sqrt(3).
    assert grid.rows[0].cells[0] == Cell(pytest.approx(20), pytest.approx(24.841, abs=1e-2), 3)
    assert len(grid.notes) == 1


def test_best_and_second() -> None:
    rows = marked([GridRow(str(v), (Cell(v),)) for v in (1.0, 3.0, 2.0, 3.0)])
    assert [row.cells[0] and row.cells[0].mark for row in rows] == [None, "best", "second", "best"]
    assert [row.cells[0] and row.cells[0].mark for row in marked(rows[:1])] == [None]
    two = marked([GridRow("a", (Cell(1.0),)), GridRow("b", (Cell(2.0),))])
    assert [row.cells[0] and row.cells[0].mark for row in two] == [None, "best"]


def test_how_a_grid_is_written() -> None:
    rows = (
        GridRow("a_b & c", (Cell(12.345, 0.5, 3, "best"), None)),
        GridRow("p", (Cell(1.0), Cell(2.0, None, 1, "second")), True),
    )
    grid = Grid("g", "A title", "Row | x", ("One", "Two (%)"), rows, ("Note 5%.",))
    text = grid.to_markdown()
    assert "| Row \\| x | One | Two (%) |" in text
    assert "| a_b & c | **12.35 ± 0.50** | – |" in text or "| a_b & c | **12.34 ± 0.50** | – |" in text
    assert "| p (published) | 1.00 | *2.00* |" in text
    latex = grid.to_latex()
    assert r"a\_b \& c & \textbf{12.3" in latex
    assert r"\underline{2.00} \\" in latex
    assert r"\caption{A title. Note 5\%. Bold: best; underlined: second.}" in latex
    assert r"\begin{tabular}{lrr}" in latex
    groups = [("A", "m", 1.0, 2.0), ("A", "n", 3.0, 4.0), ("B", "m", 5.0, 6.0)]
    across = tuple(GridRow(f"{data}: {name}", (Cell(x), Cell(y)), group=data) for data, name, x, y in groups)
    base, novel = Grid("g", "G", "", ("Base", "Novel"), across).to_latex().split(r"\end{table}")[:2]
    for part, label, numbers in (
        (base, "g-base", ("1.00 & 5.00", "3.00 & --")),
        (novel, "g-novel", ("2.00 & 6.00",)),
    ):
        assert f"label{{tab:{label}}}" in part
        assert "Method & A & B" in part
        assert all(f" & {row} " in part for row in numbers)
    odd = Grid("n", "A [/b] title", "Row", ("One",), (GridRow("[\\cmd{x} ~<b>", (Cell(1.0),)),))
    told = r"{}[\textbackslash{}cmd\{x\} \textasciitilde{}$<$b$>$ & 1.00"
    assert told in odd.to_latex()
    assert "| \\[\\\\cmd{x} \\~\\<b> | 1.00 |" in odd.to_markdown()
    console = Console(file=io.StringIO(), width=80)
    odd.render(console)
    assert "A [/b] title" in console.file.getvalue()  # type: ignore[attr-defined]
    lines = list(csv.reader(io.StringIO(grid.to_csv().decode())))
    names = [f"{name}{part}" for name in ("One", "Two (%)") for part in ("", ", sd over seeds", " seeds")]
    assert lines[0] == ["Row | x", "published", *names]
    assert lines[1] == ["a_b & c", "no", "12.3450", "0.5000", "3", "", "", ""]


def test_methods_side_by_side_with_what_they_cost() -> None:
    """The most parameters and the highest peak of any run."""
    runs = [
        record("tools", "dear", 0.50, 0.20, seed=1, trainable_parameters=1200),
        record("tools", "dear", 0.70, 0.40, seed=2),
        record("toys", "dear", 0.90, 0.10, seed=1),
        record("toys", "dear", 0.90, 0.10, seed=2, peak_memory={"resident": 1017.4, "gpu": None}),
        record("tools", "coop", 0.60, 0.30, peak_memory={"resident": 900.0, "gpu": 77.0}),
    ]
    grid = grids(runs)["base-to-novel-methods"]
    assert grid.columns[3:] == ("Trainable parameters", "Peak memory, MiB")
    # base (60 + 90) / 2, novel (30 + 10) / 2, HM 2 x 75 x 20 / 95; CoOp lacks a data set
    assert cells(grid, "dear") == ["75.00", "20.00", "31.58", "1,200", "1,017"]
    assert cells(grid, "coop") == ["", "", "", "11", "77"]
    assert "base-to-novel-methods" not in grids(runs[:4])


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
    """The inference ablation has a table of benchmarks, where another ablation was run, and of DeAR alone."""
    drawings = ablated("mixed-paints", None, 0.5, 0.5)
    twin = grids([drawings])["ablation-inference"]
    assert cells(twin, "decoupled on novel")[:2] == ["50.00", "30.00"]
    assert "ablation-inference" not in grids([drawings, record("mixed-paints", "coop", 0.5, 0.5)])
    asked = grids([drawings, ablated("mixed-paints", "all-mixed", 0.5, 0.5)])
    assert {"ablation-inference", "ablation-mask"} <= set(asked)
    assert asked["ablation-mask"].columns == ("Base", "Novel", "HM")
    photographs = ablated("EuroSAT", None, 0.5, 0.5)
    found = grids([photographs, record("EuroSAT", "coop", 0.5, 0.5)])
    assert found["ablation-inference"].columns[3] == "Base, published (11 data sets)"
    mixed = grids([drawings, photographs, record("EuroSAT", "coop", 0.5, 0.5)])
    assert "ablation-inference" not in mixed


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
    away["targets"][0]["classes"] = ["a", "b", "c", "d"]  # two of them without test images
    assert cells(grids([away])["cross-dataset"], "chance") == ["50.00", "25.00", "25.00"]
    shared = ["tools", "toys"]
    other = [ablated(name, variant, 0.5, 0.5) for name in shared for variant in (None, "CE")]
    assert cells(grids(other)["ablation-loss"], "chance")[:3] == ["100.00"] * 3
    for one in runs:
        del one["dataset"]["classes"]
    assert "chance" not in grids(runs)["base-to-novel"].to_markdown()
