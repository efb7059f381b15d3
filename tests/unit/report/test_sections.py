"""Tables of all protocols, from records made by hand."""

import csv
import io
from typing import Any

import pytest
from rich.console import Console

from dear.errors import DataError
from dear.report.grid import Cell, Grid, GridRow, marked
from dear.report.protocols import tables_of
from dear.report.protocols.base_to_novel import Results, paired_grid, published_grid
from dear.report.published import base_to_novel, slip_notes, slips
from tests.unit.report.samples import record, report_html

LAION = {"model": "ViT-B-16", "pretrained": "laion2b_s34b_b88k", "sha256": "cd" * 32}


def score(accuracy: float, decoupled: float | None = None) -> dict[str, Any]:
    return {"accuracy": accuracy, "decoupled": accuracy if decoupled is None else decoupled, "per_class": {}}


def ablated(data: str, variant: str | None, base: float, novel: float, **options: Any) -> dict[str, Any]:
    results = {"base": score(base, base - 0.1), "novel": score(novel, novel - 0.2), "hm": 0.5}
    return record(data, "dear", base, novel, variant=variant, results=results, **options)


def few(data: str, method: str, shots: int, accuracy: float, seed: int = 1) -> dict[str, Any]:
    made = record(
        data, method, 0, 0, seed=seed, protocol="few-shot", shots=shots, results={"all": score(accuracy)}
    )
    return made | {"key": f"{data} {method} {shots} {seed}"}


def moved(
    method: str,
    source: float,
    targets: dict[str, float],
    protocol: str = "cross-dataset",
    name: str = "tools",
    fused: float = 0.0,
) -> dict[str, Any]:
    """``fused`` is by how much the accuracy with all features is above that of the class feature."""
    results = {
        "source": score(source + fused, source),
        "targets": {k: score(v + fused, v) for k, v in targets.items()},
    }
    told = [{"name": name, "title": name.title(), "identity": name} for name in targets]
    made = record(name, method, 0, 0, protocol=protocol, results=results, targets=told)
    return made | {"key": f"{protocol} {method}"}


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
    assert cells(mask, "roles (DeAR)") == ["75.00", "60.00", "66.67", "85.94", "79.73", "82.72", "74.73"]
    assert cells(mask, "all-mixed") == ["85.00", "45.00", "58.85", "85.31", "76.98", "80.93", ""]
    assert cells(mask, "shuffled") == ["", "", "", "", "", "", "70.85"]
    inference = found["ablation-inference"]
    assert cells(inference, "decoupled")[:2] == ["65.00", "40.00"]
    assert cells(inference, "fusion (DeAR)")[:2] == ["75.00", "60.00"]
    # The main table holds the method itself, not its ablations.
    assert [row.label for row in found["base-to-novel"].rows if "chance" not in row.label] == [
        "Eurosat: dear",
        "Ucf101: dear",
        "Average: dear",
    ]


def test_an_ablation_is_over_the_data_sets_that_all_rows_have() -> None:
    runs = [("tools", None, 0.8), ("toys", None, 0.2), ("tools", "CE", 0.5)]
    loss = grids([ablated(data, variant, base, base) for data, variant, base in runs])["ablation-loss"]
    assert cells(loss, "CE + reg + fusion (DeAR)")[:3] == ["80.00"] * 3
    assert "average of 1 data set (Tools)" in loss.notes[0]


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


def test_transfer_reads_the_class_feature_and_leaves_the_source_out_of_the_average() -> None:
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
    assert [row.label for row in grid.rows] == ["zero-shot", "dear", "dear, fused"]
    assert cells(grid, "dear, fused") == ["70.00", "50.00", "50.00"]
    assert [cell and cell.mark for cell in grid.rows[2].cells] == [None] * 3
    assert grid.rows[1].cells[0] == Cell(50.0, mark="best")
    assert "Fused" in grid.notes[1]


def test_transfer_says_what_is_tuned_on_targets_and_never_marks_it() -> None:
    chosen = {"tuned_on_targets": {"toys": {"beta": 0.3}}}
    tuned = moved("dear", 0.9, {"toys": 0.9}) | {"key": "tuned"} | chosen
    records = [moved("dear", 0.5, {"toys": 0.3}), tuned, moved("zero-shot", 0.4, {"toys": 0.2})]
    grid = grids(records)["cross-dataset"]
    assert [row.label for row in grid.rows] == ["zero-shot", "dear", "dear (tuned on targets)"]
    assert [cell and cell.mark for cell in grid.rows[2].cells] == [None] * 3
    assert grid.rows[1].cells[0] == Cell(50.0, mark="best")
    assert grid.notes[-1].startswith("Tuned on targets")
    texts = grid.to_markdown(), grid.to_latex(), grid.to_csv().decode()
    for text in (*texts, report_html(title="", records=records)):
        assert "dear (tuned on targets)" in text
    assert "uned on targets" not in grids(records[:1])["cross-dataset"].to_markdown()


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
    records = [
        record("DescribableTextures", "dear", base, 0.75, seed=seed)
        for seed, base in ((1, 0.83), (2, 0.85), (3, 0.84))
    ]
    assert (
        published_grid(Results(records)) is None
    )  # the tiny CLIP is not what the numbers were published for
    for one in records:
        one["weights"] = LAION
    grid = published_grid(Results(records))
    assert grid is not None
    (row,) = grid.rows
    base, printed, difference = row.cells[:3]
    assert (base and base.value, printed and printed.value) == ("84.00", "83.90")
    # Three seeds, two degrees of freedom: 4.3027 * sd / sqrt(3), sd = 1.
    assert difference == Cell(pytest.approx(0.1), pytest.approx(2.4841, abs=1e-3), 3)
    assert (
        grid.to_csv()
        .decode()
        .splitlines()[0]
        .endswith(',HM difference,"HM difference, half of 95% interval",HM difference seeds')
    )
    two = published_grid(Results(records[:2]))
    assert two is not None
    assert two.rows[0].cells[2] == Cell(pytest.approx(0.1), None, 2)
    assert any(
        "Slip: DeAR, DTD: the published HM is 79.62; its own base and novel give 79.53" in n
        for n in grid.notes
    )
    assert published_grid(Results([record("tools", "dear", 0.5, 0.5)])) is None
    assert published_grid(Results([one | {"shots": 4} for one in records])) is None
    peer = record("DescribableTextures", "coop", 0.5, 0.5, weights=LAION)
    assert published_grid(Results([peer])) is None  # those of the peers are of OpenAI's weights
    assert published_grid(Results([peer | {"weights": LAION | {"pretrained": "openai"}}])) is not None


def test_methods_are_compared_over_shared_data_sets() -> None:
    records = [record(data, "zero-shot", 0.5, 0.5) for data in ("tools", "toys", "cars")]
    records += [record("tools", "dear", 0.6, 0.5), record("toys", "dear", 0.8, 0.5)]
    grid = paired_grid(Results(records))
    assert grid is not None
    assert grid.rows[0].label == "dear − zero-shot"
    # Differences 10 and 30: their interval would be 20 ± 127.
    assert grid.rows[0].cells[0] == Cell(pytest.approx(20), None, 2)
    assert "±" not in grid.notes[0]
    assert grid.notes[1].startswith("No interval over fewer than 3 data sets")
    assert paired_grid(Results(records[:3])) is None
    grid = paired_grid(Results([*records, record("cars", "dear", 0.7, 0.5)]))
    assert grid is not None
    # Differences 10, 30 and 20: mean 20, sd 10, half width 4.3027 * 10 / sqrt(3).
    assert grid.rows[0].cells[0] == Cell(pytest.approx(20), pytest.approx(24.841, abs=1e-2), 3)
    assert len(grid.notes) == 1


def test_the_slips_of_the_published_table() -> None:
    """Each number that its own row contradicts by more than 0.05 points, worked out from the table."""
    table, found = base_to_novel(), set[str]()
    for slip in slips():
        if "source" not in slip:
            found.add(f"{slip['method']}{f', {d}' if (d := slip.get('dataset')) else ''}: {slip['error']}")
    expected = set()
    for (method, data), row in table.items():
        hm = 2 * row["base"] * row["novel"] / (row["base"] + row["novel"])
        if abs(hm - row["hm"]) > 0.05:
            text = f"the published HM is {row['hm']:.2f}; its own base and novel give {hm:.2f}"
            expected.add(f"{method}, {data}: {text}")
    for method in {method for method, _ in table}:
        for half in ("base", "novel"):
            printed = table[method, "Average"][half]
            mean = (
                sum(row[half] for (m, data), row in table.items() if m == method and data != "Average") / 11
            )
            if abs(mean - printed) > 0.05:
                text = (
                    f"the published average {half} is {printed:.2f}; that of its own data sets is {mean:.2f}"
                )
                expected.add(f"{method}: {text}")
    assert expected <= found
    assert {text for text in found if "its own" in text} == expected
    # 2 * 99 * 95.8 / 194.8
    assert "DeAR, Caltech101: the published HM is 96.95; its own base and novel give 97.37" in found
    assert len(table) == 13 * 12


def test_slips_stand_only_beside_the_numbers_that_they_concern() -> None:
    assert slip_notes("base_to_novel", [("TCP", "DTD")]) == []
    assert slip_notes("cross_dataset", [("CLIP", "OxfordPets")]) == []
    assert (
        len(slip_notes("base_to_novel", [("CLIP", "OxfordPets")])) == 3
    )  # two of the number, one of the row
    openai = LAION | {"pretrained": "openai"}
    grid = published_grid(Results([record("OxfordPets", "coop", 0.9, 0.9, weights=openai)]))
    assert grid is not None
    assert [note for note in grid.notes if note.startswith("Slip")] == [
        "Slip: CoOp: the table gives its venue as ICCV2021; it is IJCV 2022 "
        "(KaiyangZhou/CoOp at ff61507, README.md)."
    ]
    ablation = grids([ablated("EuroSAT", one, 0.5, 0.5) for one in (None, "all-mixed")])["ablation-mask"]
    assert "74.73; elsewhere it is 74.83" in ablation.notes[-1]


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
    assert r"\caption{A title. Note 5\%.}" in latex
    assert r"\begin{tabular}{lrr}" in latex
    lines = list(csv.reader(io.StringIO(grid.to_csv().decode())))
    names = [f"{name}{part}" for name in ("One", "Two (%)") for part in ("", ", sd over seeds", " seeds")]
    assert lines[0] == ["Row | x", "published", *names]
    assert lines[1] == ["a_b & c", "no", "12.3450", "0.5000", "3", "", "", ""]


def test_signs_that_mean_something_elsewhere() -> None:
    rows = (GridRow("\\cmd{x} J^2 ~<b>\n[/b]", (Cell(1.0),)),)
    grid = Grid("n", "A [/b] title", "Row", ("One",), rows)
    told = r"\textbackslash{}cmd\{x\} J\textasciicircum{}2 \textasciitilde{}\textless{}b\textgreater{} [/b]"
    assert f"{told} & 1.00" in grid.to_latex()
    assert "| \\\\cmd{x} J^2 \\~\\<b> \\[/b\\] | 1.00 |" in grid.to_markdown()
    assert r"{}[9cm]" in Grid("n", "t", "Row", ("One",), (GridRow("[9cm]", (Cell(1.0),)),)).to_latex()
    console = Console(file=io.StringIO(), width=80)
    grid.render(console)
    assert "A [/b] title" in console.file.getvalue()  # type: ignore[attr-defined]


def test_methods_side_by_side_with_what_they_cost() -> None:
    """Medians of 4, 4, 7 and 40 seconds; the most parameters and the highest peak of any run."""
    runs = [
        record("tools", "dear", 0.50, 0.20, seed=1, trainable_parameters=1200),
        record("tools", "dear", 0.70, 0.40, seed=2, seconds={"train": 30.0, "test": 10.0}),
        record("toys", "dear", 0.90, 0.10, seed=1, seconds={"train": 5.0, "test": 2.0}),
        record("toys", "dear", 0.90, 0.10, seed=2, peak_memory={"resident": 1017.4, "gpu": None}),
        record("tools", "coop", 0.60, 0.30, peak_memory={"resident": 900.0, "gpu": 77.0}),
    ]
    grid = grids(runs)["base-to-novel-methods"]
    assert grid.columns[3:] == ("Trainable parameters", "Seconds per run", "Peak memory, MiB")
    # base (60 + 90) / 2, novel (30 + 10) / 2, HM 2 x 75 x 20 / 95; CoOp lacks a data set
    assert cells(grid, "dear") == ["75.00", "20.00", "31.58", "1,200", "5.5", "1,017"]
    assert cells(grid, "coop") == ["", "", "", "11", "4.0", "77"]
    assert "base-to-novel-methods" not in grids(runs[:4])
