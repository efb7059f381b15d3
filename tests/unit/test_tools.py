"""The tools that guard a refactor notice a changed digit, and put a mutant where its description says."""

import json
from pathlib import Path
from typing import Any

from tools.baseline import differences
from tools.mutants import ROOT, SAMPLE, mutate


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
