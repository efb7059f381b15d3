"""The Markdown of a report: what a record says is shown literally in every line."""

import json
from pathlib import Path

import pytest

from dear.evaluation.ablations import ablations
from dear.report.folder import write_folder_report
from dear.report.grid import Cell, Grid, GridRow, markdown_text
from tests.unit.report.samples import record

TITLE = "<img src=x onerror=alert(1)> ![p](http://evil.example/p.png)\n\n# head \x1b[31m *a* _b_ `c`"
LITERAL = (
    r"&lt;img src=x onerror=alert(1)> !\[p\](http\://evil.example/p.png) # head \\x1b\[31m \*a\* \_b\_ \`c\`"
)


def test_titles_in_notes_are_no_markdown(tmp_path: Path) -> None:
    """The note of an ablation names its data sets."""
    labels = [row.label for row in ablations()["loss"].rows]
    for number, variant in enumerate(labels):
        run = record("tools", "dear", 0.5, 0.6, variant=variant)
        run["dataset"]["title"] = TITLE
        run["results"]["base"]["decoupled"] = run["results"]["novel"]["decoupled"] = 0.4
        (tmp_path / f"{number}.json").write_text(json.dumps(run))
    texts = [path.read_text() for path in write_folder_report(tmp_path).files if path.suffix == ".md"]
    assert any(f"average of 1 data set ({LITERAL})" in text for text in texts)
    for text in texts:
        assert "\x1b" not in text
        assert "<img" not in text
        assert "![" not in text
        assert not [line for line in text.splitlines() if line.startswith("# head")]


def test_every_part_of_a_table_is_literal() -> None:
    grid = Grid("g", TITLE, TITLE, (TITLE,), (GridRow(TITLE, (Cell(1.0),)),), (TITLE,))
    assert [line.count(LITERAL) for line in grid.to_markdown().splitlines()] == [1, 0, 2, 0, 1, 0, 1]


def test_underscores_within_a_word_stay() -> None:
    assert markdown_text("laion2b_s34b _a__b_ _") == r"laion2b_s34b \_a\_\_b\_ \_"


@pytest.mark.parametrize(
    ("text", "literal"),
    [
        ("https://x.example HTTP://y", r"https\://x.example HTTP\://y"),
        ("www.x.example WWW.y a.www.b www", r"www\.x.example WWW\.y a.www\.b www"),
        ("me@x.example", r"me\@x.example"),
        ("$a$ ~~b~~ 1:2", r"\$a\$ \~\~b\~\~ 1:2"),
        ("&lt; &#60; <b> a & b", r"\&lt; \&#60; &lt;b> a & b"),
    ],
)
def test_addresses_formulas_and_entities_are_literal(text: str, literal: str) -> None:
    """As GitHub shows them: it made links of addresses in a stranger's records."""
    assert markdown_text(text) == literal


def test_a_row_of_latex_gives_no_option_to_the_line_before() -> None:
    rows = tuple(GridRow(name, (Cell(1.0),)) for name in ("[9cm] a", "*b", "c [d]"))
    latex = Grid("g", "A title", "[e]", ("One",), rows, ()).to_latex().splitlines()
    assert [line for line in latex if line.endswith(r"\\")] == [
        r"{}[e] & One \\", r"{}[9cm] a & 1.00 \\", r"{}*b & 1.00 \\", r"c [d] & 1.00 \\",
    ]  # fmt: skip
