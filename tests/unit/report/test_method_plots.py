"""Figures that compare methods: gains by hand, labels that cover nothing; and the table of many methods."""

import xml.etree.ElementTree as ElementTree
from typing import Any

import pytest
from matplotlib.figure import Figure

from dear.report.drawing import Drawing
from dear.report.grid import Cell
from dear.report.html import report_page
from dear.report.method_plots import (
    cost_plot,
    cost_scale,
    few_shot_plot,
    fusion_heat_map,
    gain_bars,
    mean_curves,
    training_curves,
)
from dear.report.protocols.base_to_novel import Results, costs_of, gains
from tests.unit.report.samples import record, report_html

MANY = ("zero-shot", "coop", "cocoop", "maple", "promptsrc", "dear")


def runs(methods: tuple[str, ...] = MANY) -> list[dict[str, Any]]:
    return [
        record(data, method, 0.5 + 0.05 * at, 0.5)
        for data in ("tools", "toys")
        for at, method in enumerate(methods)
    ]


def texts(drawing: Drawing) -> list[str]:
    root = ElementTree.fromstring(drawing.svg)
    return [element.text or "" for element in root.iter("{http://www.w3.org/2000/svg}text")]


def test_gains_by_hand() -> None:
    records = [
        record("tools", "zero-shot", 0.5, 0.5), record("tools", "dear", 0.75, 0.6),
        record("toys", "zero-shot", 0.8, 0.8), record("toys", "dear", 0.6, 0.6),
        record("cars", "dear", 0.6, 0.6),
    ]  # fmt: skip
    gained = gains(Results(records), "zero-shot")
    # 2 * 75 * 60 / 135 - 50, and 60 - 80; zero-shot has no run on cars.
    assert gained.to_dict() == {
        "dear": {"Tools": pytest.approx(16.667, abs=1e-3), "Toys": pytest.approx(-20)}
    }
    drawing = gain_bars(gained, "zero-shot")
    assert drawing is not None
    assert "Tools +16.7, Toys -20.0" in drawing.description
    assert {"dear", "Tools", "Toys", "points of HM over zero-shot"} <= {*texts(drawing)}
    assert gain_bars(gains(Results(records[:1]), "zero-shot"), "zero-shot") is None


def compared(**seconds: float) -> Drawing | None:
    """The figure of methods that have 17,670 parameters, but zero-shot, and an HM of 50."""
    made = [
        record("tools", name, 0.5, 0.5) | {"seconds": {"train": spent, "test": 1.0}}
        for name, spent in seconds.items()
    ]
    return cost_plot(dict.fromkeys(seconds, 50.0), costs_of(made), "zero-shot")


def test_a_figure_of_too_much_is_left_out() -> None:
    """A figure of 3,000 weights took minutes; those of few are drawn."""
    many = {f"feature-{at}": 1 / 3000 for at in range(3000)}
    assert fusion_heat_map({"Tools": many}) is None
    assert training_curves({f"data-{at}": [1.0, 0.5] for at in range(101)}) is None
    assert compared(**{f"method{at}": 9.0 for at in range(101)}) is None
    page = report_page(title="t", records=[record("tools", "dear", 0.5, 0.5, fusion_weights=many)])
    assert "fusion" not in {drawing.name for drawing in page.drawings}
    curve = {shots: Cell(50.0) for shots in range(1, 2002)}
    assert few_shot_plot("few-shot", {"Tools": {"dear": curve}}) is None


def test_costs_leave_out_what_is_not_known() -> None:
    drawing = compared(**{"zero-shot": 0.0, "dear": 8.0})
    assert drawing is not None
    assert "seconds per run" in texts(drawing)
    assert "trained parameters" not in texts(drawing)  # one method alone
    assert "mathdefault" not in drawing.svg
    assert "zero-shot: HM 50.0, parameters 0.0, seconds 1.0" in drawing.description
    assert compared(dear=8.0) is None


@pytest.mark.parametrize(("costs", "most"), [((3.9, 20.2), 9), ((5.0, 5.0), 5), ((10.0, 3e6), 12)])
def test_an_axis_of_costs_has_some_numbers(costs: tuple[float, float], most: int) -> None:
    axes = Figure().add_subplot()
    axes.scatter(costs, (60.0, 70.0))
    cost_scale(axes, costs)
    axes.margins(0.16, 0.14)
    low, high = axes.get_xlim()
    locations = axes.xaxis.get_majorticklocs()
    labels = axes.xaxis.get_major_formatter().format_ticks(locations)
    inside = [label for label, at in zip(labels, locations, strict=True) if low <= at <= high and label]
    assert (1 if costs[0] == costs[1] else 2) <= len(inside) <= most
    assert len({*inside}) == len(inside)


def test_several_data_sets_stand_beside_each_other_with_the_average_last() -> None:
    page = report_html(title="t", records=runs())
    head = page[page.index('aria-label="Base-to-novel generalization"') :]
    head = head[: head.index("</thead>")]
    assert [part.split("<")[0] for part in head.split('class="wrap">')[1:]] == ["Tools", "Toys", "Average"]
    # dear on each: 2 * 75 * 50 / 125 = 60, the best of all; base and novel below it.
    row = page[page.index('<th scope="row">dear</th>') :]
    row = row[: row.index("</tr>")]
    assert row.count("<strong>60.00</strong>") == 3
    assert row.count("75.00 / 50.00") == 3


def test_the_validation_accuracy_of_the_epochs_is_drawn_where_it_is_known() -> None:
    def run(seed: int, *vals: float) -> dict[str, Any]:
        epochs = [{"epoch": at, "loss": 1.0 / at, "val": val} for at, val in enumerate(vals, start=1)]
        return record("tools", "dear", 0.5, 0.5, seed=seed, train={"epochs": epochs})

    records = [run(1, 0.4, 0.6), run(2, 0.6, 0.7), record("toys", "dear", 0.5, 0.5)]
    assert mean_curves(records, "val") == {"Tools": [pytest.approx(0.5), pytest.approx(0.65)]}
    assert mean_curves(records) == {"Tools": [1.0, 0.5], "Toys": [2.0, 1.5]}
    drawing = training_curves(mean_curves(records), mean_curves(records, "val"))
    assert drawing is not None
    assert "validation accuracy (%)" in texts(drawing)
    assert "by which" not in report_html(title="t", records=records[2:])
    assert "accuracy on the validation images" in report_html(title="t", records=records)


def test_few_shot_curves_have_bands_of_the_deviation_over_seeds() -> None:
    curve = {1: Cell(50.0, 5.0, 2), 4: Cell(60.0, 2.5, 2)}
    drawn = few_shot_plot("few-shot", {"Tools": {"dear": curve}})
    assert drawn is not None
    assert "PolyCollection" in drawn.svg or "FillBetween" in drawn.svg
    without = few_shot_plot("few-shot", {"Tools": {"dear": {n: Cell(one.mean) for n, one in curve.items()}}})
    assert without is not None
    assert "PolyCollection" not in without.svg
    assert "FillBetween" not in without.svg
    assert "Tools, dear: 1 shots 50.0, 4 shots 60.0" in drawn.description
