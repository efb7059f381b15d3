"""The tool that guards a refactor notices a changed digit, and runs commands that exist."""

import shlex
from typing import Any

import pytest
import yaml

from tests.helpers.commands import parse_arguments
from tools.baseline import CASES, differences

LINES = yaml.safe_load(CASES.read_text(encoding="utf-8"))


def baseline(accuracy: float, name: str = "accuracy") -> dict[str, Any]:
    results = {"results": {"base": {name: accuracy, "per_class": {"red": 0.25}}}, "settings": {"beta": 0.9}}
    return {
        "runs": {"few-shot": {"exit": 0, "records": {"photos-dear-1shot-seed1": results}}},
        "reports": {},
        "commands": {"predict": {"exit": 0, "result": {"score": accuracy, "top": True}}},
        "written": {"files": {}, "tensors": {"bundle": {"adapter.tokens": "0a1b"}}},
    }


def test_compare_lists_a_changed_digit_and_what_is_missing() -> None:
    before, after = baseline(0.8125), baseline(0.8125000000000001)
    assert differences(before, before) == []
    assert differences(before, after) == [
        "command predict: 1 numbers gone, 1 new: [0.8125] -> [0.8125000000000001]",
        "run few-shot / photos-dear-1shot-seed1: 1 numbers gone, 1 new: [0.8125] -> [0.8125000000000001]",
    ]
    after["written"]["tensors"]["bundle"]["adapter.tokens"] = "0a1c"
    del after["commands"]["predict"]
    assert differences(before, after)[::2] == [
        "command predict: missing",
        "tensors of bundle: 1 numbers gone, 1 new: ['0a1b'] -> ['0a1c']",
    ]


@pytest.mark.parametrize("name", [*LINES["runs"], *LINES["commands"]])
def test_its_commands_are_valid(name: str) -> None:
    """A command that is refused would be recorded as such, and guard nothing."""
    line = (LINES["runs"] | LINES["commands"])[name]
    words = shlex.split(line.format(methods=LINES["methods"], short=LINES["short"]))
    parse_arguments(words)
