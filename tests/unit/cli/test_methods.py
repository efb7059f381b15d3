"""`dear methods`, and the help of commands that take settings of methods."""

import json
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from dear.cli.main import main
from dear.cli.run import make_setups
from dear.evaluation.resolve import MethodSetup
from dear.methods.registry import FIT_METHOD, METHODS, option_groups

ROOT = Path(__file__).parents[3]


def shown(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    assert main(words) == 0
    return capsys.readouterr().out


def test_every_method_with_all_its_settings(capsys: pytest.CaptureFixture[str]) -> None:
    found = json.loads(shown(["methods", "--json"], capsys))
    assert [one["name"] for one in found] == [*METHODS]
    for one in found:
        kind = METHODS[one["name"]].settings
        names = [option.partition(".")[2].replace("-", "_") for option in one["settings"]]
        assert names == [field.name for field in fields(kind)]
        assert all(one[what] for what in ("title", "about", "arxiv"))
    by_name = {one["name"]: one for one in found}
    assert by_name["mmrl++"]["paper"] == "Guo and Gu, IJCV 2026"
    assert by_name["mmrl++"]["settings"][0] == "--mmrlpp.first"
    assert by_name["tip-adapter"]["protocols"] == ["few-shot"]
    assert "retrieval" in by_name["dear"]["protocols"]
    assert by_name["dear"]["extra"] == ["Needs a role table of the backbone."]


def test_help_names_the_defaults_of_each_protocol(capsys: pytest.CaptureFixture[str]) -> None:
    def unwrapped(method: str) -> str:
        return " ".join(shown(["fit", "--method", method, "--help"], capsys).replace("│", " ").split())

    assert "tokens: 16 in few-shot and fit." in unwrapped("coop")
    assert 'True with attributes "playfulness, energy" on OxfordPets.' in unwrapped("atprompt")
    mmrl = unwrapped("mmrl")
    assert "space: 2048 on EuroSAT in" in mmrl
    assert "reg-weight: one for each of 11 benchmarks in" in mmrl
    assert "; 0.2 in cross-dataset and domain-generalization." in mmrl


def test_it_fits_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    assert max(map(len, shown(["methods"], capsys).splitlines())) <= 80


def test_the_list_ends_with_what_to_choose(capsys: pytest.CaptureFixture[str]) -> None:
    recommendation = shown(["methods"], capsys).splitlines()[-1]
    assert recommendation.startswith(f"Start with {FIT_METHOD},")
    [page] = re.findall(r"docs/\w+\.md", recommendation)
    assert f"`{FIT_METHOD}`" in (ROOT / page).read_text(encoding="utf-8")


def test_all_methods_each_with_its_settings() -> None:
    settings = dict[str, Any].fromkeys(option_groups(), {}) | {"coop": {"tokens": 7}}
    setups = make_setups(list(METHODS), settings, ["roles", "shuffled"])
    assert list(dict.fromkeys(setup.method for setup in setups)) == list(METHODS)
    assert MethodSetup("coop", {"tokens": 7}) in setups
    assert [setup.role_variant for setup in setups if setup.method == "dear"] == ["roles", "shuffled"]
    assert make_setups(["coop"], settings) == (MethodSetup("coop", {"tokens": 7}),)
