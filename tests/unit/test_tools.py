"""The tools that guard a refactor notice a changed digit, and put a mutant where its description says."""

import json
from pathlib import Path
from typing import Any

from tools.baseline import differences, differing_digits
from tools.mutants import ROOT, SAMPLE, mutate


def baseline(accuracy: float, name: str = "accuracy") -> dict[str, Any]:
    results = {"results": {"base": {name: accuracy, "per_class": {"red": 0.25}}}, "settings": {"beta": 0.9}}
    return {
        "runs": {"few-shot": {"exit": 0, "records": {"photos-dear-1shot-seed1": results}}},
        "reports": {},
        "commands": {"predict": {"exit": 0, "result": {"score": accuracy, "top": True}}},
        "written": {"files": {}, "tensors": {"bundle": {"adapter.tokens": "0a1b"}}},
    }


def test_compare_lists_a_changed_digit() -> None:
    before, after = baseline(0.8125), baseline(0.8125000000000001)
    run = "runs / few-shot / records / photos-dear-1shot-seed1 / results / base / accuracy"
    assert differences(before, after) == [
        f"{run}: 0.8125 -> 0.8125000000000001",
        "commands / predict / result / score: 0.8125 -> 0.8125000000000001",
    ]
    assert differing_digits(before, after) == [
        "run few-shot / photos-dear-1shot-seed1: 1 numbers gone, 1 new: [0.8125] -> [0.8125000000000001]",
        "command predict: 1 numbers gone, 1 new: [0.8125] -> [0.8125000000000001]",
    ]


def test_compare_lists_what_is_missing_and_new() -> None:
    before, after = baseline(0.5), baseline(0.5)
    del after["commands"]["predict"]
    after["commands"]["ask"] = None
    lines = differences(before, after)
    assert "commands / predict / exit: 0 -> missing" in lines
    assert "commands / ask: new: null" in lines
    assert differing_digits(before, after) == ["command predict: missing"]


def test_a_mutant_is_applied_where_it_says_or_lost(tmp_path: Path) -> None:
    source = "def of(one, other):\n    return one * other + 1 if one > 0 else 1 - one * other\n"
    (tmp_path / "losses.py").write_text(source)
    mutant = {"file": "losses.py", "old": "one * other + 1", "new": "one / other + 1"}
    assert mutate(mutant, tmp_path) == source.replace("one * other + 1", "one / other + 1")
    assert mutate(mutant | {"old": "one * other"}, tmp_path) is None  # it is there twice
    assert mutate(mutant | {"old": "one + other"}, tmp_path) is None
    assert mutate(mutant | {"file": "gains.py"}, tmp_path) is None


def test_every_mutant_has_its_place() -> None:
    sample = json.loads(SAMPLE.read_text())
    assert [mutant for mutant in sample if mutate(mutant, ROOT / "src/dear") is None] == []
