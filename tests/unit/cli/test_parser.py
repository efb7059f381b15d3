"""Options: lists with commas, and values that are refused."""

from pathlib import Path

import pytest
from cyclopts import CycloptsError

from dear.cli.parsing import named_methods
from tests.unit.cli.sample import parse


@pytest.mark.parametrize(
    ("value", "texts"),
    [
        ("007,yes", ["007", "yes"]),
        ("12:30, x", ["12:30", "x"]),
        ("a #1,b: c", ["a #1", "b: c"]),
        ("@home,'t Hooft", ["@home", "'t Hooft"]),
        ("null,~", ["null", "~"]),
        ('"a, b",c', ["a, b", "c"]),
        ("[x],{y}", ["[x]", "{y}"]),
        ("ol\xe9,\U0001f600", ["ol\xe9", "\U0001f600"]),
    ],
)
def test_texts_between_commas_are_texts(value: str, texts: list[str]) -> None:
    assert parse("tasks", "--tasks", value)["tasks"] == texts
    assert parse("tasks", f"--tasks={value}", "--tasks", "z")["tasks"] == [*texts, "z"]


def test_lists_of_a_group_of_options_are_written_with_commas() -> None:
    options = parse("roles", "assign", "spans.txt", "--attributes", "color,shape")
    assert options["naming"].attributes == ("color", "shape")


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (["--select", "lats"], "--select"),
        (["--train.epochs", "1.5"], "--train.epochs"),
        (["--train.lr=-inf"], "--train.lr"),
        (['--train={"epochs": 5}'], "--train"),
        (["--shots", "9" * 5000], "--shots"),
        (["--add-classes=a,,b"], "--add-classes"),
        (["--add-classes="], "--add-classes"),
        (['--add-classes="a,b'], "--add-classes"),
    ],
)
def test_a_wrong_value_names_its_option(words: list[str], name: str) -> None:
    with pytest.raises(CycloptsError, match=name):
        parse("fit", "photos", "--out", "b", *words)


def test_methods_are_named_by_their_options_alone() -> None:
    def command(data: Path, *, methods: list[str]) -> None: ...

    def other(data: Path) -> None: ...

    words = ["run", "--methods", "coop,dear", "x", "--methods=tac", "--", "--methods", "maple"]
    assert named_methods(words, command) == ["tac", "coop", "dear"]
    assert named_methods(words, other) == []
