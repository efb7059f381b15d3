"""Each method against another, by hand."""

import csv
import io
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dear.errors import UnknownNameError
from dear.evaluation.predictions import predictions_file
from dear.report.differences import holm, t_test
from dear.report.grid import Grid
from dear.report.report_page import report_page
from dear.stats import QUANTILE, mcnemar_test
from tests.helpers.records import predictions, record, retrieval


def tables_against(runs: list[dict[str, Any]], against: str) -> tuple[Grid, ...]:
    return report_page(title="t", records=runs, against=against).tables


def test_corrected_p_values() -> None:
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.9, 0.8]) == [1, 1]


def test_p_values() -> None:
    """Student's with two degrees of freedom is 1 - t / sqrt(t^2 + 2), here t = 2 sqrt 3."""
    assert t_test([1, 2, 3]) == pytest.approx(1 - (12 / 14) ** 0.5)
    assert t_test([0, 0, 0]) == 1
    assert t_test([0.1, 0.1, 0.1]) is None  # a p-value of 1e-32 by rounding
    assert mcnemar_test(8, 2) == pytest.approx(2 * (1 + 10 + 45) / 1024)
    assert mcnemar_test(0, 0) == 1


def run_with_predictions(data: str, method: str, share: float, right: int, folder: Path) -> dict[str, Any]:
    """A run whose two halves have the same accuracy, and of ten images of each of two classes the first
    ``right`` predicted correctly.
    """
    made = record(data, method, share, share)
    made["predictions"] = folder / f"{data}-{method}.npz"
    by_class = [[label if image < right else 2 for image in range(10)] for label in range(2)]
    made["predictions"].write_bytes(predictions_file({"base": predictions(by_class)}))
    return made


def test_a_table_against_a_method(tmp_path: Path) -> None:
    """The HM of equal halves is their accuracy: differences of 1, 2 and 3 points. Over images dear is right
    in 8, 6 and 4 of 20 that coop has wrong, and nowhere the other way round.
    """
    runs = [
        run_with_predictions(
            data, method, 0.5 + gain / 100 * (method == "dear"), right if method == "dear" else 2, tmp_path
        )
        for data, gain, right in (("tools", 1, 6), ("toys", 2, 5), ("tiles", 3, 4))
        for method in ("coop", "dear", "maple")
    ]
    tables = report_page(title="t", records=runs, against="coop").tables
    (grid,) = [grid for grid in tables if grid.name == "base-to-novel-against"]
    dear, maple = (
        next(row for row in grid.rows if row.label == f"{name} − coop").cells for name in ("dear", "maple")
    )
    assert (dear[0].mean, dear[0].spread) == (pytest.approx(2), pytest.approx(4.303 / 3**0.5, abs=1e-3))
    assert dear[1].mean == pytest.approx(2 * (1 - (12 / 14) ** 0.5))  # the smaller of two
    assert dear[2].mean == pytest.approx(100 * (8 + 6 + 4) / 60)
    assert 15 < dear[3].mean < dear[2].mean < dear[4].mean < 45
    assert (dear[5].mean, dear[6].mean, dear[7].mean) == (18, 0, pytest.approx(2 * 2 / 2**18))
    # The interval of no difference in n = 60 images ends at z^2 / (n + z^2).
    end = 100 * QUANTILE**2 / (60 + QUANTILE**2)
    assert [cell.mean for cell in maple] == pytest.approx([0, 1, 0, -end, end, 0, 0, 1])
    assert str(dear[7]) == "<0.001"
    assert r" & 0 & $<$0.001" in grid.to_latex().replace(r" \\", "")
    assert r"| 0 | \<0.001 |" in grid.to_markdown()
    of_dear = next(
        line for line in csv.DictReader(io.StringIO(grid.to_csv().decode())) if "dear" in line["Methods"]
    )
    assert float(of_dear["p over images"]) == pytest.approx(2 * 2 / 2**18, rel=1e-5)
    assert "No difference found at the 5% level over images: maple − coop." in grid.notes
    shuffled = record("tools", "dear", 0.6, 0.6, variant="shuffled", overrides={"train": {"epochs": 5}})
    grids = report_page(title="t", records=[*runs, shuffled], against="coop").tables
    assert any("dear (shuffled) (epochs 5)" in note for grid in grids for note in grid.notes)
    (against,) = [grid for grid in grids if grid.name == "base-to-novel-against"]
    assert not any("shuffled" in note for note in against.notes)  # it is in the table of the ablation alone
    without = [{key: value for key, value in run.items() if key != "predictions"} for run in runs]
    grid = report_page(title="t", records=without, against="coop").tables[-2]
    assert (grid.name, grid.columns) == ("base-to-novel-against", ("Difference", "p"))
    with pytest.raises(UnknownNameError, match=r"'tip-adapter'.*coop"):
        report_page(title="t", records=runs, against="tip-adapter")


def test_only_runs_on_as_many_images_are_compared(tmp_path: Path) -> None:
    """coop and maple have 4 images of each class, dear 1; zero-shot has none to have fewer of."""
    runs = [run_with_predictions("tools", method, 0.5, 5, tmp_path) for method in ("coop", "maple", "dear")]
    runs += [run_with_predictions("tools", "zero-shot", 0.4, 2, tmp_path)]
    for run, shots in zip(runs, (4, 4, 1, 0), strict=True):
        run["shots"] = shots
    (grid,) = [grid for grid in tables_against(runs, "coop") if grid.name == "base-to-novel-against"]
    assert [row.label for row in grid.rows] == ["zero-shot − coop", "maple − coop"]
    (unlike,) = [note for note in grid.notes if note.startswith("Not compared")]
    assert "dear (1 shot" in unlike
    assert "coop (4 shots" in unlike


def test_images_of_a_group_count_as_one(tmp_path: Path) -> None:
    """dear is right in 10 images more, the third to seventh of two classes. On their own p = 2 / 2^10; in
    pairs these are of three groups a class, so p = 2 / 2^6, and the interval is wider.
    """
    cells = []
    for size in (1, 2):
        runs = [
            run_with_predictions("tools", name, 0.5, right, tmp_path)
            for name, right in (("coop", 2), ("dear", 7))
        ]
        for run, right in zip(runs, (2, 7), strict=True):
            by_class = [[label if image < right else 2 for image in range(10)] for label in range(2)]
            tested = predictions(by_class, groups=np.arange(20) // size)
            run["predictions"].write_bytes(predictions_file({"base": tested}))
        (grid,) = [grid for grid in tables_against(runs, "coop") if grid.name == "base-to-novel-against"]
        cells.append([cell and cell.mean for cell in grid.rows[0].cells])
        assert any("from 10 groups" in note for note in grid.notes) == (size == 2)
    (alone, paired) = cells
    assert (alone[7], paired[7]) == (pytest.approx(2 / 2**10), pytest.approx(2 / 2**6))
    assert 0 < paired[3] < alone[3] < alone[2] < alone[4] < paired[4]  # type: ignore[operator]


def test_a_comparison_says_what_it_lacks() -> None:
    """Of two targets and one seed a transfer has no interval; of three targets it has."""

    def notes(*targets: str, seeds: int = 3) -> list[str]:
        found = []
        for seed, (method, gain) in product(range(seeds), (("coop", 0.0), ("maple", 0.1))):
            run = record("tools", method, 0.5, 0.5, seed=seed, protocol="cross-dataset")
            run["targets"] = [{"name": name, "title": name, "identity": name} for name in targets]
            run["results"] = {"source": {"accuracy": 0.5, "decoupled": 0.5}}
            run["results"]["targets"] = {
                name: {"accuracy": 0.4 + at * gain, "decoupled": 0.4 + at * gain}
                for at, name in enumerate(targets, start=1)
            }
            found.append(run)
        (grid,) = [grid for grid in tables_against(found, "coop") if grid.name == "cross-dataset-against"]
        assert (len(grid.columns), grid.rows[0].cells[0].mean) == (2, pytest.approx(5 * (len(targets) + 1)))  # type: ignore[union-attr]
        assert (grid.rows[0].cells[1] is None) == (len(targets) * seeds < 3)
        return [note for note in grid.notes if note.startswith(("No differences", "No interval"))]

    over_images = "No differences over images: the tables of a transfer"
    assert [note[: len(over_images)] for note in notes("toys", "tiles", "cars")] == [over_images]
    few, images = notes("toys", "tiles", seeds=1)
    assert few == "No interval and no p of maple − coop: 2 pairs of data set and seed of both, 3 are needed."
    assert images.startswith(over_images)


def test_two_data_sets_are_compared_over_their_seeds() -> None:
    """By hand: differences of 1, 2, 3 and 3, 4, 5 points have the mean 3 and the deviation sqrt(2); half the
    interval is t(5) sqrt(2 / 6), and p that of t = 3 / sqrt(2 / 6), by the density of t with 5 degrees.
    """
    runs = [
        record(data, method, share, share, seed=seed)
        for data, gain in (("tools", 0.01), ("toys", 0.03))
        for seed in range(3)
        for method, share in (("coop", 0.5), ("maple", 0.5 + gain + 0.01 * seed))
    ]
    (grid,) = [grid for grid in tables_against(runs, "coop") if grid.name == "base-to-novel-against"]
    difference, p_value, *_ = grid.rows[0].cells
    assert difference is not None
    assert p_value is not None
    assert (difference.mean, difference.seeds) == (pytest.approx(3), 6)
    assert difference.spread == pytest.approx(2.570582 * (2 / 6) ** 0.5, abs=1e-5)
    steps = np.linspace(3 / (2 / 6) ** 0.5, 2000, 4_000_001)
    density = 8 / (3 * np.pi * 5**0.5) * (1 + steps**2 / 5) ** -3
    assert p_value.mean == pytest.approx(2 * np.trapezoid(density, steps), rel=1e-3)
    assert any("nothing of other data sets" in note for note in grid.notes)


def test_retrievals_are_not_compared() -> None:
    results = {"queries": [], "precision": {"cls": {"color": 0.5}}, "chance": {"color": 0.1}}
    with pytest.warns(UserWarning, match="retrieval has no comparison of methods"):
        tables_against([retrieval(results)], "dear")
