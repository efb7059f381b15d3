"""Options: their sorts, lists with commas, and values that are refused."""

from pathlib import Path
from typing import Any

import pytest
from cyclopts import App, CycloptsError

from dear.cli.main import main
from dear.cli.parsing import OPTIONS, named_methods
from dear.cli.registry import COMMANDS
from tests.unit.cli.sample import Training, sample


def parsed(*words: str) -> dict[str, Any]:
    """The options of the sample."""
    app = App(default_command=sample, default_parameter=OPTIONS)
    _, bound, _ = app.parse_args(words, print_error=False, exit_on_error=False)
    bound.apply_defaults()
    return dict(bound.arguments)


def test_options_of_every_sort() -> None:
    defaults = {"tasks": None, "shots": None, "mask": "roles", "dry_run": False, "keep_all": True}
    assert parsed("d") == {"data": Path("d"), "training": Training(), **defaults}
    options = parsed("d", "--tasks", "a,b", "--dry-run", "--no-keep-all", "--training.epochs", "3")
    assert options["tasks"] == ["a", "b"]
    assert (options["dry_run"], options["keep_all"]) == (True, False)
    assert options["training"] == Training(3)
    assert parsed("--shots=1", "d", "--shots=2")["shots"] == 2
    assert parsed("--training.rate", "-1e-3", "--", "-d")["data"] == Path("-d")


@pytest.mark.parametrize(
    ("value", "texts"),
    [
        ("1,2", ["1", "2"]),
        ("yes,no", ["yes", "no"]),
        ("007,8", ["007", "8"]),
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
    assert parsed("d", "--tasks", value)["tasks"] == texts
    assert parsed("d", f"--tasks={value}", "--tasks", "z")["tasks"] == [*texts, "z"]


def test_lists_of_a_group_of_options_are_written_with_commas() -> None:
    words = ["d", "--training.stages", "yes,two", "--training.sizes=4,5"]
    assert parsed(*words)["training"] == Training(stages=("yes", "two"), sizes=(4, 5))


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (["--mask", "role"], "--mask"),
        (["--training.epochs", "1.5"], "--training.epochs"),
        (["--training.rate=-inf"], "--training.rate"),
        (['--training={"epochs": 5}'], "--training"),
        (["--shots", "9" * 5000], "--shots"),
        (["--tasks", "a,,b"], "--tasks"),
        (["--tasks="], "--tasks"),
        (["--tasks", '"a,b'], "--tasks"),
    ],
)
def test_a_wrong_value_names_its_option(words: list[str], name: str) -> None:
    with pytest.raises(CycloptsError, match=name):
        parsed("d", *words)


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_of_every_command_fits_a_screen_in_width(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*name.split(), "--help"]) == 0
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 100


def test_methods_are_named_by_their_options_alone() -> None:
    def command(data: Path, *, methods: list[str]) -> None: ...

    def other(data: Path) -> None: ...

    words = ["run", "--methods", "coop,dear", "x", "--methods=tac", "--", "--methods", "maple"]
    assert named_methods(words, command) == ["tac", "coop", "dear"]
    assert named_methods(words, other) == []
