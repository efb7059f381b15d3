"""Limits: a default, a variable that raises it, a message that names both."""

import pytest

from dear.errors import SettingsError
from dear.limits import LIMITS, LimitError, at_most, limit


def test_the_variable_replaces_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    assert limit("json_depth") == LIMITS["json_depth"].default
    monkeypatch.setenv("DEAR_LIMIT_JSON_DEPTH", "7")
    assert limit("json_depth") == 7


@pytest.mark.parametrize("given", ["", "-3", "0", "2.5", "many", "٣", "9" * 30])
def test_a_variable_that_is_no_count_is_refused(monkeypatch: pytest.MonkeyPatch, given: str) -> None:
    monkeypatch.setenv("DEAR_LIMIT_JSON_DEPTH", given)
    with pytest.raises(SettingsError, match="DEAR_LIMIT_JSON_DEPTH"):
        limit("json_depth")


def test_the_bound_itself_passes_and_one_more_is_refused_with_the_way_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("DEAR_LIMIT_JSON_DEPTH", "7")
    at_most("json_depth", 7, "file.json")
    with pytest.raises(LimitError, match=r"file\.json asks for 8 .* at most 7 .*DEAR_LIMIT_JSON_DEPTH"):
        at_most("json_depth", 8, "file.json")
