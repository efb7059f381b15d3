"""The tool that guards a refactor notices a changed digit."""

from typing import Any

from tools.baseline import differences


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
