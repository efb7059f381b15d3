"""The figures: well-formed, the same each time, fit for a light and a dark page, safe with any name."""

import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable

import pytest

from dear.errors import DataError
from dear.report.drawing import Drawing
from dear.report.method_plots import average_bars, fusion_heat_map, training_curves
from dear.report.protocols.base_to_novel import Results
from dear.report.roles_plots import head_role_map
from tests.unit.report.samples import record, records, role_table

HOSTILE = '</text><script>alert(1)</script>--!>$x_$ & "q" id="figure_1"'


def bars(runs: list[dict]) -> Drawing | None:
    return average_bars(Results(runs).averages)


FIGURES: dict[str, tuple[Callable[[], Drawing | None], set[str]]] = {
    "fusion": (
        lambda: fusion_heat_map({"Tools": {"cls": 0.7, "color": 0.3}, "Toys": {"cls": 0.6}}),
        {"70.0", "30.0", "60.0", "Tools", "Toys", "cls", "color"},
    ),
    "roles": (
        lambda: head_role_map(role_table()),
        {"color", "shape", "70%", "30%", "mixed", "general", "number", "9", "10"},
    ),
    "training": (lambda: training_curves({"Tools": [2.0, 1.5, 1.25], "Toys": [1.0, 0.5]}), {"Tools", "Toys"}),
    "bars": (lambda: bars(records()), {"60.0", "75.0", "66.7"}),
}


@pytest.mark.parametrize("name", FIGURES)
def test_well_formed_and_in_the_colors_of_the_page(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)  # importing it is an error now
    draw, shown = FIGURES[name]
    drawing, again = draw(), draw()
    assert drawing is not None
    assert again is not None
    svg = drawing.svg
    assert svg == again.svg
    root = ElementTree.fromstring(svg)
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert root.attrib["role"] == "img"
    assert len(root.attrib["aria-label"]) > 30
    assert shown <= texts(drawing)
    ids = [element.attrib["id"] for element in root.iter() if "id" in element.attrib]
    assert len(ids) == len(set(ids))
    assert all(identifier.startswith(f"{name}-") for identifier in ids)
    used = [value[1:] for element in root.iter() for key, value in element.attrib.items() if key == "href"]
    assert set(used) <= set(ids)
    assert "currentColor" in svg
    assert "fill: #ffffff" not in svg.split("<text", 1)[0]
    assert not [part for part in ("#010203", "<style", "<metadata") if part in svg]


def texts(drawing: Drawing) -> set[str]:
    root = ElementTree.fromstring(drawing.svg)
    return {element.text or "" for element in root.iter("{http://www.w3.org/2000/svg}text")}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    "name",
    [HOSTILE, "font: 9px bar", 'style="font: 9px bar', "#010203", "xlink:href=x", "url(#a)", "\u732b\x1b[2J"],
)
def test_hostile_names_stay_text(name: str) -> None:
    """A title `font: 9px bar` made the SVG malformed; a letter that no font has was warned of."""
    drawing = training_curves({name: [2.0, 1.5, 1.25], "Toys": [1.0, 0.5]})
    assert drawing is not None
    for svg in (drawing.svg, drawing.standalone()):
        assert not [part for part in ("<script", "<!--", "\x1b") if part in svg]
        shown = {text.strip() for text in ElementTree.fromstring(svg).itertext()}
        assert name.replace("\x1b", "\\x1b") in shown


def test_deviations_are_drawn() -> None:
    runs = [record("tools", "dear", base, 0.5, seed=seed) for seed, base in ((1, 0.5), (2, 0.7))]
    drawing = bars(runs)
    assert drawing is not None
    assert "LineCollection" in drawing.svg


def test_nothing_to_draw() -> None:
    assert fusion_heat_map({}) is None
    assert training_curves({"Tools": []}) is None
    assert bars(records()[:1] + records()[3:]) is None
    with pytest.raises(DataError):
        head_role_map(role_table() | {"heads": []})


def test_unknown_role_is_refused() -> None:
    table = role_table()
    table["heads"][0]["role"] = "queen"
    with pytest.raises(DataError, match="layer 9, head 0"):
        _ = head_role_map(table).svg
