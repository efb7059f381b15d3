"""Limits: a default, a variable that raises it, a message that names both."""

import pytest
import torch

from dear.backbone.clip import Clip
from dear.data.sources.class_names import require_distinct
from dear.errors import SettingsError
from dear.limits import LIMITS, LimitError, limit, require_at_most
from dear.methods.registry import build_method
from tests.helpers.errors import refuses


def test_the_bound_itself_passes_and_one_more_is_refused_with_the_way_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert limit("json_bytes") == LIMITS["json_bytes"].default
    monkeypatch.setenv("DEAR_LIMIT_JSON_BYTES", "7")
    require_at_most("json_bytes", 7, "file.json")
    with pytest.raises(LimitError, match=r"file\.json: 8 .*7\. .*DEAR_LIMIT_JSON_BYTES"):
        require_at_most("json_bytes", 8, "file.json")


@pytest.mark.parametrize("given", ["", "-3", "0", "2.5", "many", "٣", "9" * 30])
def test_a_variable_that_is_no_count_is_refused(monkeypatch: pytest.MonkeyPatch, given: str) -> None:
    monkeypatch.setenv("DEAR_LIMIT_JSON_BYTES", given)
    refuses(SettingsError, "DEAR_LIMIT_JSON_BYTES", limit, "json_bytes")


def test_names_and_prompts_are_counted_before_any_is_encoded(
    monkeypatch: pytest.MonkeyPatch, small_clip: Clip
) -> None:
    method = build_method("zero-shot", small_clip, torch.Generator())
    names, templates = ["red", "green", "blue"], ["a photo of a {}", "a {}"]
    monkeypatch.setenv("DEAR_LIMIT_PROMPTS", "6")
    method.set_classes(names, templates)
    monkeypatch.setattr(Clip, "tokenize", lambda *_: pytest.fail("names were encoded"))
    for refused in ([*templates, "the {}"], ["a {}" + 998 * "b"]):
        refuses(LimitError, "3 class names", method.set_classes, names, refused)
    monkeypatch.setenv("DEAR_LIMIT_PROMPTS", "3")
    require_distinct("here", names, names)
    for more in ([*names, "sea"], ["x" * 1000, "y" * 1001]):
        with pytest.raises(LimitError, match=r"^here: "):
            require_distinct("here", more, more)
