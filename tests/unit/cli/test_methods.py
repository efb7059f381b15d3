"""`dear methods`, and the help of commands that take settings of methods."""

import json
import re
from dataclasses import fields
from pathlib import Path

import pytest

from dear.cli.main import main
from dear.cli.registry import COMMANDS, GROUPS
from dear.methods.registry import FIT_METHOD, METHODS, option_groups

ROOT = Path(__file__).parents[3]


def shown(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    assert main(words) == 0
    return capsys.readouterr().out


def settings_in(text: str) -> set[str]:
    """The prefixes of the methods' settings that a help text explains."""
    groups = {name.replace("_", "-") for name in option_groups()} | {*option_groups()}
    return {one for one in re.findall(r"^  --([\w-]+)\.", text, re.MULTILINE) if one in groups}


def test_every_method_with_all_its_settings(capsys: pytest.CaptureFixture[str]) -> None:
    found = json.loads(shown(["methods", "--json"], capsys))["methods"]
    assert [one["name"] for one in found] == [*METHODS]
    for one in found:
        kind = METHODS[one["name"]].settings
        names = [setting["option"].partition(".")[2].replace("-", "_") for setting in one["settings"]]
        assert names == [field.name for field in fields(kind)]
        assert all(setting["about"] for setting in one["settings"]), one["name"]
        assert all(one[what] for what in ("title", "about", "arxiv"))
    by_name = {one["name"]: one for one in found}
    assert by_name["mmrl++"]["paper"] == "Guo and Gu, IJCV 2026"
    assert by_name["mmrl++"]["settings"][0] == {
        "option": "--mmrlpp.first",
        "type": "int",
        "default": 6,
        "other_defaults": [],
        "allowed": "from 1 to 12",
        "about": "First layer that representation tokens enter, of 12.",
    }
    assert by_name["tip-adapter"]["protocols"] == ["few-shot"]
    assert "retrieval" in by_name["dear"]["protocols"]
    assert by_name["dear"]["extra"] == ["Needs a role table of the backbone."]


def test_help_names_the_defaults_of_each_protocol(capsys: pytest.CaptureFixture[str]) -> None:
    help_of_fit = " ".join(shown(["fit", "--method", "coop", "--help"], capsys).split())
    assert "4 and 16 are published. (default: 4; 16 in few-shot and fit)" in help_of_fit
    listed = " ".join(shown(["methods", "--methods", "maple"], capsys).split())
    assert "--maple.depth (default 9; 3 in cross-dataset and domain-generalization;" in listed


def test_a_name_that_is_there_again_is_described_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert shown(["methods", "--methods", "coop,dear,coop"], capsys).count("--coop.tokens") == 1


def test_it_fits_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["methods"], ["methods", "--methods", "dear,promptkd,tac"]):
        assert max(map(len, shown(words, capsys).splitlines())) <= 80
    assert main(["methods", "--methods", "nosuch"]) == 2


def test_the_list_ends_with_what_to_choose(capsys: pytest.CaptureFixture[str]) -> None:
    recommendation = shown(["methods"], capsys).splitlines()[-1]
    assert recommendation.startswith(f"Start with {FIT_METHOD},")
    [page] = re.findall(r"docs/\w+\.md", recommendation)
    assert f"`{FIT_METHOD}`" in (ROOT / page).read_text(encoding="utf-8")
    assert recommendation not in shown(["methods", "--methods", "dear"], capsys)


def test_help_shows_the_settings_of_the_chosen_methods(capsys: pytest.CaptureFixture[str]) -> None:
    short = shown(["fit", "--help"], capsys)
    assert settings_in(short) == set()
    assert "\n  --train." not in short
    assert "\n  --select, --threads, --config, --print-config, --json, --train.*, --dataset.*\n" in short
    assert short.endswith("settings of a method: 'dear fit --method NAME --help'\n")
    assert settings_in(text := shown(["fit", "--method", "maple", "--help"], capsys)) == {"maple"}
    assert "\n  --train." not in text
    assert settings_in(text := shown(["fit", "--help-all"], capsys)) == {"dear-plus"}
    assert "\n  --train.epochs INT" in text
    run = ["run", "base-to-novel"]
    assert settings_in(shown([*run, "--help-all"], capsys)) == {"dear"}
    assert settings_in(shown([*run, "--methods=coop,mmrl++", "--help"], capsys)) == {"coop", "mmrlpp"}
    text = shown([*run, "--methods", "all", "--help"], capsys)
    assert len(settings_in(text)) == len(option_groups())
    assert "settings of a method" not in text
    assert main(["fit", "--method", "nosuch", "--help"]) == 2
    assert "settings of a method" not in shown(["eval", "--help"], capsys)


def test_the_overview_has_its_commands_under_headings(capsys: pytest.CaptureFixture[str]) -> None:
    blocks = shown(["--help"], capsys).split("\n\n")
    for heading, commands in GROUPS.items():
        (block,) = (one for one in blocks if one.startswith(f"{heading}\n"))
        listed = [re.split(r" {2,}", line.strip())[0] for line in block.splitlines()[1:]]
        assert listed == [*commands]
    assert [name for commands in GROUPS.values() for name in commands] == [*COMMANDS]
    assert [heading.partition(":")[0] for heading in GROUPS] == [
        "use", "compare", "roles", "data", "world", "model",
    ]  # fmt: skip
