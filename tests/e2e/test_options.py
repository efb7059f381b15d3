"""Options on the command line: lists, settings of methods."""

from typing import Any

import pytest

from dear.cli.main import main
from tests.helpers.commands import parse_arguments

LISTS = {
    "1,yes,007,null": ["1", "yes", "007", "null"],
    "a b: #1 --classes c,d": ["a b: #1", "c", "d"],
    '"a, b",c': ["a, b", "c"],
    "12:30, x --classes ~": ["12:30", "x", "~"],
    "@home,'t Hooft,[x],{y}": ["@home", "'t Hooft", "[x]", "{y}"],
    "ol\xe9,\U0001f600": ["ol\xe9", "\U0001f600"],
}


@pytest.mark.parametrize(("text", "classes"), LISTS.items())
def test_lists_are_written_with_commas(text: str, classes: list[str]) -> None:
    first, *second = text.split(" --classes ")
    words = ["predict", "bundle", "a,b.png", "-", "c.png", "--classes", first]
    options = parse_arguments([*words, *(word for name in second for word in ("--classes", name))])
    assert options["classes"] == classes
    assert [word.replace("\0", "-") for word in options["images"]] == ["a,b.png", "-", "c.png"]


def test_lists_of_numbers_and_of_groups() -> None:
    options = parse_arguments(["run", "few-shot", "--seeds=1,2", "--dataset.workers", "2"])
    assert [*options["options"].seeds] == [1, 2]
    options = parse_arguments(["roles", "assign", "spans.txt", "--settings.attributes", "color,shape"])
    assert [*options["naming"].settings["attributes"]] == ["color", "shape"]


def test_options_of_every_sort() -> None:
    options = parse_arguments(
        ["fit", "--train.lr", "1e-3", "--no-review", "--shots=1", "--shots=2", "--out", "b", "--", "-d"]
    )
    assert options["data"] == "-d"
    assert (options["options"].shots, options["review"], options["overwrite"]) == (2, False, False)
    assert options["train"]["lr"] == 0.001
    assert parse_arguments(["data", "check", "x", "--no-decode"])["decode"] is False


def test_methods_have_settings_of_their_own(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["run", "base-to-novel", "--methods", "coop,mmrl++,tip-adapter"]
    settings = ["--coop.tokens", "4", "--mmrl++.beta", "0.5", "--mmrlpp.scale=null", "--tip-adapter.tuned"]
    options: dict[str, Any] = parse_arguments([*words, *settings])
    assert options["coop"] == {"tokens": 4}
    assert options["mmrlpp"] == {"beta": 0.5, "scale": None}
    assert options["tip_adapter"] == {"tuned": True}
    assert parse_arguments(["fit", "mixed-paints", "--out", "b", "--method", "auto"])["method"] == "auto"
    assert main(["fit", "mixed-paints", "--out", "b", "--coop.tokens", "4"]) == 2
    assert "--coop.tokens" in capsys.readouterr().err
