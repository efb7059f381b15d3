"""Limits: a default, a variable that raises it, a message that names both."""

import pytest
import torch

from dear.backbone.clip import Clip
from dear.data.sources.listing import require_distinct
from dear.errors import SettingsError
from dear.limits import LIMITS, LimitError, at_most, limit
from dear.methods.registry import build_method


def test_the_variable_replaces_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    assert limit("json_bytes") == LIMITS["json_bytes"].default
    monkeypatch.setenv("DEAR_LIMIT_JSON_BYTES", "7")
    assert limit("json_bytes") == 7


@pytest.mark.parametrize("given", ["", "-3", "0", "2.5", "many", "٣", "9" * 30])
def test_a_variable_that_is_no_count_is_refused(monkeypatch: pytest.MonkeyPatch, given: str) -> None:
    monkeypatch.setenv("DEAR_LIMIT_JSON_BYTES", given)
    with pytest.raises(SettingsError, match="DEAR_LIMIT_JSON_BYTES"):
        limit("json_bytes")


def test_the_bound_itself_passes_and_one_more_is_refused_with_the_way_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("DEAR_LIMIT_JSON_BYTES", "7")
    at_most("json_bytes", 7, "file.json")
    with pytest.raises(LimitError, match=r"file\.json: 8 .* limit of 7\. .*DEAR_LIMIT_JSON_BYTES"):
        at_most("json_bytes", 8, "file.json")


def test_names_and_prompts_are_counted_before_any_is_encoded(
    monkeypatch: pytest.MonkeyPatch, small_clip: Clip
) -> None:
    method = build_method("zero-shot", small_clip, torch.Generator())
    names, templates = ["red", "green", "blue"], ["a photo of a {}", "a {}"]
    monkeypatch.setenv("DEAR_LIMIT_PROMPTS", "6")
    method.set_classes(names, templates)
    monkeypatch.setattr(Clip, "tokenize", lambda *_: pytest.fail("names were encoded"))
    with pytest.raises(LimitError, match=r"3 class names: 9 prompts"):
        method.set_classes(names, [*templates, "the {}"])
    with pytest.raises(LimitError, match=r"3 class names: 1,002 characters of a class name or a template"):
        method.set_classes(names, ["a {}" + 998 * "b"])
    monkeypatch.setenv("DEAR_LIMIT_CLASSES", "3")
    require_distinct("here", names, names)
    with pytest.raises(LimitError, match="here: 4 class names"):
        require_distinct("here", [*names, "sea"], [*names, "sea"])
    long = ["x" * 1000, "y" * 1001]
    with pytest.raises(LimitError, match="here: 1,001 characters of a class name"):
        require_distinct("here", long, long)
