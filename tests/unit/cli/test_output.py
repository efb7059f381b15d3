"""Results as JSON and as tables: what they may hold, and what is escaped."""

import io
import json
from dataclasses import dataclass
from pathlib import Path

import pytest
from rich.console import Console

from dear.cli.output import PrintableConsole, json_text, table, to_jsonable


@dataclass
class Pair:
    """A result of two values."""

    first: int
    second: tuple[int, ...] = (3,)


def test_what_a_result_may_hold() -> None:
    value = {"a": Pair(3), "b": (1, float("nan")), "c": {"z", "y"}, "d": Path("x/y"), "e": None}
    pair = {"first": 3, "second": [3]}
    assert to_jsonable(value) == {"a": pair, "b": [1, None], "c": ["y", "z"], "d": "x/y", "e": None}
    with pytest.raises(TypeError, match="object cannot be written as JSON"):
        to_jsonable([object()])


def test_tables_show_two_decimals_and_dashes() -> None:
    console = Console(width=80)
    with console.capture() as captured:
        console.print(table("Accuracy", ("task", "base"), [("badges", 51.234), ("tools", float("nan"))]))
    lines = [line.split() for line in captured.get().splitlines()]
    assert ["badges", "51.23"] in lines
    assert ["tools", "–"] in lines


def test_the_lines_of_a_cell_stand_below_each_other() -> None:
    console = PrintableConsole(width=80)
    with console.capture() as captured:
        console.print(table(None, ("name", "role"), [("a\nb", ("mixed", None)), ("c", ("core", "color"))]))
    lines = [line.split() for line in captured.get().splitlines()[-5:]]
    assert lines[:4] == [["a\\nb", "mixed"], ["–"], ["c", "core"], ["color"]]


def test_a_line_is_shown_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    PrintableConsole(width=9).say("[red]a\nb :cat: and more", Path("[x]"))
    assert capsys.readouterr().out == "[red]a\\nb :cat: and more\n[x]\n"


@pytest.mark.parametrize("options", [{}, {"markup": False}])
def test_nothing_in_a_table_is_markup(options: dict[str, bool]) -> None:
    console = Console(width=80)
    with console.capture() as captured:
        shown = table("in a[/b]c", ("[red]image", "base"), [("[red]/:cat:.png", 1.0)])
        console.print(shown, **options)
    assert [line.split() for line in captured.get().splitlines() if "[" in line] == [
        ["in", "a[/b]c"],
        ["[red]image", "base"],
        ["[red]/:cat:.png", "1.00"],
    ]


def test_a_console_keeps_its_colors_and_shows_the_controls_of_texts() -> None:
    stream = io.StringIO()
    console = PrintableConsole(file=stream, force_terminal=True, highlight=False, width=99)
    console.print("[bold]ours[/bold]")
    assert stream.getvalue() == "\x1b[1mours\x1b[0m\n"
    for shown in ("x\x1b[2Jy", table("x\x1b[2Jy", ["x\x1b[2Jy"], [["x\x1b[2Jy"]])):
        console.print(shown, markup=False)
    assert "\x1b[2J" not in stream.getvalue()
    assert stream.getvalue().count(r"x\x1b[2Jy") == 4


def test_json_escapes_every_control() -> None:
    value = "\x1b\x07\n\x7f\x9b\u202e\u2028"
    assert json.loads(json_text(value)) == value
    assert json_text(value).isprintable()
