"""The figures: well-formed, the same each time, fit for a light and a dark page, safe with any name."""

import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from typing import Any

import pytest

from dear.errors import DataError
from dear.report import roles_plots
from dear.report.base_to_novel import base_to_novel_table
from dear.report.drawing import Drawing
from dear.report.method_plots import accuracy_bars
from dear.report.training_plots import fusion_heat_map, training_curves
from tests.unit.report.samples import record, records, role_table

HOSTILE = '</text><script>alert(1)</script>--!>$x_$ & "q" id="figure_1"'

FIGURES: dict[str, Callable[[], str]] = {
    "fusion": lambda: fusion_heat_map({"Tools": {"cls": 0.7, "color": 0.3}, "Toys": {"cls": 0.6}}),
    "roles": lambda: roles_plots.head_role_map(role_table()),
    "training": lambda: training_curves({"Tools": [2.0, 1.5, 1.25], "Toys": [1.0, 0.5]}),
    "bars": lambda: accuracy_bars(base_to_novel_table(records())),
}


@pytest.mark.parametrize("name", FIGURES)
def test_same_input_same_svg_and_well_formed(name: str) -> None:
    svg = FIGURES[name]().svg
    assert svg == FIGURES[name]().svg
    root = ElementTree.fromstring(svg)
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert root.attrib["role"] == "img"
    assert len(root.attrib["aria-label"]) > 30
    ids = [element.attrib["id"] for element in root.iter() if "id" in element.attrib]
    assert len(ids) == len(set(ids))
    assert all(identifier.startswith(f"{name}-") for identifier in ids)
    used = [value[1:] for element in root.iter() for key, value in element.attrib.items() if key == "href"]
    assert set(used) <= set(ids)


@pytest.mark.parametrize("name", FIGURES)
def test_svg_takes_the_colour_of_the_page(name: str) -> None:
    svg = FIGURES[name]().svg
    assert "currentColor" in svg
    assert "#010203" not in svg
    assert "fill: #ffffff" not in svg.split("<text", 1)[0]
    assert "<style" not in svg
    assert "<metadata" not in svg


def texts(drawing: Drawing) -> list[str]:
    root = ElementTree.fromstring(drawing.svg)
    return [element.text or "" for element in root.iter("{http://www.w3.org/2000/svg}text")]


def test_cells_say_what_they_show() -> None:
    assert {"70.0", "30.0", "60.0", "Tools", "Toys", "cls", "color"} <= set(texts(FIGURES["fusion"]()))
    shown = texts(FIGURES["roles"]())
    assert {"color", "shape", "70%", "30%", "mixed", "general", "number", "9", "10"} <= set(shown)
    assert {"60.0", "75.0", "66.7"} <= set(texts(FIGURES["bars"]()))


def test_hostile_names_stay_text() -> None:
    drawings = (
        fusion_heat_map({HOSTILE: {"cls": 1.0}}),
        training_curves({HOSTILE: [1.0]}),
    )
    svg = "".join(drawing.svg for drawing in drawings)
    assert "<script" not in svg
    assert "<!--" not in svg
    bars = accuracy_bars(base_to_novel_table([record("tools", HOSTILE, 0.5, 0.5)]))
    assert any("alert(1)" in text for text in texts(bars))


@pytest.mark.parametrize(
    "name",
    ["font: 9px bar", 'style="font: 9px bar', "#010203", "xlink:href=x", 'a style="color: red', "url(#a)"],
)
def test_names_like_a_style_stay_as_they_are(name: str) -> None:
    """A title `font: 9px bar` made the SVG malformed: what follows was replaced up to the next quote."""
    drawing = training_curves({name: [2.0, 1.5, 1.25], "Toys": [1.0, 0.5]})
    for svg in (drawing.svg, drawing.standalone()):
        assert name in {text.strip() for text in ElementTree.fromstring(svg).itertext()}


def test_deviations_are_drawn() -> None:
    runs = [record("tools", "dear", base, 0.5, seed=seed) for seed, base in ((1, 0.5), (2, 0.7))]
    assert "LineCollection" in accuracy_bars(base_to_novel_table(runs)).svg


@pytest.mark.parametrize(
    "draw",
    [
        lambda: fusion_heat_map({}),
        lambda: training_curves({}),
        lambda: roles_plots.head_role_map(role_table() | {"heads": []}),
        lambda: accuracy_bars(base_to_novel_table(records()[:1] + records()[3:])),
    ],
)
def test_nothing_to_draw_is_said(draw: Callable[[], Any]) -> None:
    with pytest.raises(DataError):
        draw()


def test_unknown_role_is_refused() -> None:
    table = role_table()
    table["heads"][0]["role"] = "queen"
    with pytest.raises(DataError, match="layer 9, head 0 has the unknown role 'queen'"):
        _ = roles_plots.head_role_map(table).svg


def test_no_pyplot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)  # importing it is an error now
    for draw in FIGURES.values():
        assert draw().svg


@pytest.mark.filterwarnings("error")
def test_names_that_no_font_has() -> None:
    """matplotlib warned of each letter, on stderr, in the line of a note of dear's."""
    drawing = fusion_heat_map({"Too\x1b[2Jls \u732b": {"cls": 0.7, "color": 0.3}})
    assert "\u732b" in drawing.svg
