"""Figures that compare methods: gains by hand, labels that cover nothing; and the table of many methods."""

import xml.etree.ElementTree as ElementTree
from itertools import combinations
from typing import Any

import pytest
from matplotlib.figure import Figure
from matplotlib.transforms import Bbox

from dear.report.base_to_novel import base_to_novel_table
from dear.report.drawing import Drawing
from dear.report.grid import Cell
from dear.report.html import report_page
from dear.report.method_plots import (
    Costs,
    cost_plot,
    gain_bars,
    gains,
    place_labels,
)
from dear.report.protocols.few_shot import few_shot_plot
from dear.report.training_plots import fusion_heat_map, training_curves
from tests.unit.report.samples import record

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
    table = base_to_novel_table(records)
    # 2 * 75 * 60 / 135 - 50, and 60 - 80; zero-shot has no run on cars.
    assert gains(table, "zero-shot") == {
        "dear": {"Tools": pytest.approx(16.667, abs=1e-3), "Toys": pytest.approx(-20)}
    }
    drawing = gain_bars(table, "zero-shot")
    assert drawing is not None
    assert "Tools +16.7, Toys -20.0" in drawing.description
    assert {"dear", "Tools", "Toys", "points of HM over zero-shot"} <= {*texts(drawing)}
    assert gain_bars(base_to_novel_table(records[:1]), "zero-shot") is None


def test_labels_cover_neither_each_other_nor_points() -> None:
    figure = Figure(figsize=(4.7, 4.0), layout="constrained")
    axes = figure.add_subplot()
    axes.set_xscale("log")
    points = {f"method-{at}": (10 ** (3 + 0.03 * at), 70 + 0.4 * (at % 3)) for at in range(16)}
    axes.scatter(*zip(*points.values(), strict=True), s=26)
    axes.margins(0.16, 0.14)
    figure.draw_without_rendering()
    boxes = [label.get_window_extent() for label in place_labels(axes, points)]
    assert len(boxes) == 16
    assert not [pair for pair in combinations(boxes, 2) if Bbox.intersection(*pair) is not None]
    inside = axes.get_window_extent()
    for box in boxes:
        assert inside.x0 <= box.x0 < box.x1 <= inside.x1
        assert inside.y0 <= box.y0 < box.y1 <= inside.y1
        assert not any(box.contains(*axes.transData.transform(point)) for point in points.values())


def test_a_figure_of_too_much_is_left_out() -> None:
    """A figure of 3,000 weights took minutes; those of few are drawn."""
    many = {f"feature-{at}": 1 / 3000 for at in range(3000)}
    assert fusion_heat_map({"Tools": many}) is None
    assert training_curves({f"data-{at}": [1.0, 0.5] for at in range(101)}) is None
    costs = [Costs(f"method-{at}", 60.0, 1000.0 + at, 9.0) for at in range(101)]
    assert cost_plot(costs, None) is None
    assert cost_plot(costs[:100], None) is not None
    page = report_page(title="t", records=[record("tools", "dear", 0.5, 0.5, fusion_weights=many)])
    assert "fusion" not in {drawing.name for drawing in page.drawings}
    curve = {shots: Cell(50.0) for shots in range(1, 2002)}
    assert few_shot_plot({"Tools": {"dear": curve}}) is None


def test_costs_leave_out_what_is_not_known() -> None:
    methods = [Costs("zero-shot", 60.0, None, 1.0), Costs("dear", 70.0, 17_670.0, 9.0)]
    drawing = cost_plot(methods, "zero-shot")
    assert isinstance(drawing, Drawing)
    assert "seconds per run" in texts(drawing)
    assert "trained parameters" not in texts(drawing)  # one method alone
    assert "mathdefault" not in drawing.svg
    assert "zero-shot: HM 60.0, 1.0 seconds" in drawing.description
    assert cost_plot(methods[:1], None) is None
