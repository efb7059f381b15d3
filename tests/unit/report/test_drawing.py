"""The figures: well-formed, the same each time, in the page's color, safe with any name."""

import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable

import pytest
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from dear.evaluation.metrics import Bin
from dear.report.drawing import INK, Drawing
from dear.report.grid import Cell, Grid, GridRow
from dear.report.plots import (
    few_shot_plot,
    fusion_map,
    gain_bars,
    mean_curves,
    reliability_diagram,
    training_curves,
)
from dear.report.protocols.base_to_novel import Results, gains
from dear.report.report_page import role_table_of
from dear.report.roles_page import head_role_map
from tests.helpers.records import record, records, role_table

HOSTILE = '</text><script>alert(1)</script>--!>$x_$ & "q" id="figure_1"'
LOSSES = {"Tools": [2.0, 1.5, 1.25], "Toys": [1.0, 0.5]}


def draw_roles() -> Drawing:
    table = role_table_of([record("tools", "dear", 0.5, 0.5, roles={"table": role_table()})])
    return head_role_map(table)


def draw_weights() -> Drawing | None:
    rows = [("Tools", 62.5, 37.5), ("Toys", 100.0, 0.0)]
    cells = tuple(GridRow(name, (Cell(cls), Cell(color))) for name, cls, color in rows)
    return fusion_map(Grid("fusion", "Weights", "Data set", ("cls", "color"), cells))


FIGURES: dict[str, tuple[Callable[[], Drawing | None], set[str]]] = {
    "roles": (draw_roles, {"color", "shape", "70%", "30%", "mixed", "general", "number", "9", "10"}),
    "fusion": (draw_weights, {"Tools", "Toys", "cls", "color", "62.5", "37.5"}),
    "training": (lambda: training_curves(LOSSES, {}), {"Tools", "Toys"}),
}


def texts(drawing: Drawing) -> set[str]:
    root = ElementTree.fromstring(drawing.svg)
    return {element.text or "" for element in root.iter("{http://www.w3.org/2000/svg}text")}


@pytest.mark.parametrize("name", FIGURES)
def test_well_formed_and_in_the_ink_of_the_page(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)  # importing it is an error now
    draw, shown = FIGURES[name]
    drawing, again = draw(), draw()
    assert drawing.svg == again.svg
    root = ElementTree.fromstring(drawing.svg)
    assert root.attrib["role"] == "img"
    assert len(root.attrib["aria-label"]) > 30
    assert shown <= texts(drawing)
    ids = {element.attrib["id"] for element in root.iter() if "id" in element.attrib}
    used = {value[1:] for element in root.iter() for key, value in element.attrib.items() if "href" in key}
    assert used <= ids
    assert f"fill: {INK}" in drawing.svg


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", [HOSTILE, "font: 9px bar", "#010203", "url(#a)", "\u732b\x1b[2J"])
def test_hostile_names_stay_text(name: str) -> None:
    """A letter that no font has was warned of."""
    drawing = training_curves({name: [2.0, 1.5, 1.25], "Toys": [1.0, 0.5]}, {})
    assert not [part for part in ("<script", "<!--", "\x1b") if part in drawing.svg]
    shown = {text.strip() for text in ElementTree.fromstring(drawing.svg).itertext()}
    assert name.replace("\x1b", "\\x1b") in shown


def test_deviations_are_drawn() -> None:
    curve = {1: Cell(50.0, 5.0, 2), 4: Cell(60.0, 2.5, 2)}
    bare = {shots: Cell(cell.mean) for shots, cell in curve.items()}
    with_band, without = (few_shot_plot("few-shot", {"Tools": {"dear": of}}).svg for of in (curve, bare))
    assert "fill-opacity: 0.18" in with_band
    assert "fill-opacity: 0.18" not in without


def test_nothing_to_draw() -> None:
    assert training_curves({}, {}) is None
    assert gain_bars(gains(Results(records()[:1]), "zero-shot"), "zero-shot") is None


def test_gains_by_hand() -> None:
    runs = [
        record("tools", "zero-shot", 0.5, 0.5), record("tools", "dear", 0.75, 0.6),
        record("toys", "zero-shot", 0.8, 0.8), record("toys", "dear", 0.6, 0.6),
        record("cars", "dear", 0.6, 0.6),
    ]  # fmt: skip
    gained = gains(Results(runs), "zero-shot")
    # 2 * 75 * 60 / 135 - 50, and 60 - 80; zero-shot has no run on cars.
    assert gained.to_dict() == {
        "dear": {"Tools": pytest.approx(16.667, abs=1e-3), "Toys": pytest.approx(-20)}
    }
    drawing = gain_bars(gained, "zero-shot")
    assert "Tools +16.7, Toys -20.0" in drawing.description
    assert {"dear", "Tools", "Toys", "points of HM over zero-shot"} <= texts(drawing)


def test_curves_are_averaged_over_seeds() -> None:
    def run(seed: int, *vals: float) -> dict:
        epochs = [{"epoch": at, "loss": 1.0 / at, "val": val} for at, val in enumerate(vals, start=1)]
        return record("tools", "dear", 0.5, 0.5, seed=seed, train={"epochs": epochs})

    runs = [run(1, 0.4, 0.6), run(2, 0.6, 0.7), record("toys", "dear", 0.5, 0.5)]
    losses, validated = mean_curves(runs, "loss"), mean_curves(runs, "val")
    assert validated == {"Tools": [pytest.approx(0.5), pytest.approx(0.65)]}
    assert losses == {"Tools": [1.0, 0.5], "Toys": [2.0, 1.5]}
    drawing = training_curves(losses, validated)
    assert "validation accuracy (%)" in texts(drawing)


def test_a_bar_is_as_wide_as_its_bin() -> None:
    bins = (Bin(0.0, 0.5, 3, 0.4, 0.3), Bin(0.5, 0.6, 2, 0.55, 0.5), Bin(0.6, 1.0, 0, 0.0, 0.0))
    figure = Figure()
    reliability_diagram(bins).paint(figure)
    for axes in figure.axes:
        bars = [bar for bar in axes.patches if isinstance(bar, Rectangle)]
        assert [(bar.get_x(), bar.get_width()) for bar in bars] == [
            (pytest.approx(2.5), pytest.approx(45)),  # nine tenths, in the middle
            (pytest.approx(50.5), pytest.approx(9)),
        ]
