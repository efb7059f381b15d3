"""Facts on made records: each threshold from both sides, by hand; the tau of known orders."""

from typing import Any

import pytest

from tests.unit.report.samples import record
from tools.facts import ALONE, averages, check_facts, kendall_tau, published_averages
from tools.headroom import Headroom

HALVES = {  # method -> base, novel in percent, in the published order of HM
    "zero-shot": (66, 70),
    "coop": (76, 61),
    "cocoop": (76, 67),
    "promptsrc": (80, 71),
    "mmrl": (82, 72),
    "mmrl++": (82, 73),
}
ROOMS = {"a": Headroom(66, 70, 90, 68, 70), "b": Headroom(66, 70, 90, 72, 69)}
ROOMS["c"] = Headroom(66, 70, 90, 70, 70)
FACTORS = {f"task {factor}": factor for factor in ALONE}


def records(**changed: tuple[float, float]) -> list[dict[str, Any]]:
    halves = HALVES | {name.replace("pp", "++"): pair for name, pair in changed.items()}
    return [record("a", name, base / 100, novel / 100) for name, (base, novel) in halves.items()]


def verdicts(found: list[dict[str, Any]], **more: Any) -> list[bool | None]:
    facts = check_facts(found, more.get("rooms", ROOMS), more.get("alone", FACTORS))
    assert [fact.number for fact in facts] == [1, 1, 2, 2, 3, 3, 4, 4, 5]
    return [fact.holds for fact in facts]


def test_all_hold() -> None:
    assert verdicts(records()) == [True] * 9


@pytest.mark.parametrize(
    ("changed", "broken"),
    [
        ({"zero-shot": (70, 69)}, {0}),
        ({"zero-shot": (66, 81)}, {0}),
        ({"coop": (71.9, 61)}, {2}),
        ({"coop": (76, 68.1)}, {2, 3}),
        ({"cocoop": (76, 60)}, {3}),
        ({"mmrlpp": (70, 60)}, {7}),
        ({"mmrl": (70, 62)}, {6, 7}),
    ],
)
def test_each_breaks_alone(changed: dict[str, tuple[float, float]], broken: set[int]) -> None:
    assert {place for place, holds in enumerate(verdicts(records(**changed))) if not holds} == broken


def test_what_is_measured_without_training() -> None:
    rooms = {"a": Headroom(66, 70, 77, 68, 70), "b": Headroom(66, 70, 77, 72, 69)}
    assert verdicts(records(), rooms=rooms)[1] is False
    rooms = dict.fromkeys("abc", Headroom(66, 70, 90, 72, 73))  # 6 of a gain of 16
    assert verdicts(records(), rooms=rooms)[4:6] == [False, False]
    del rooms["c"]
    assert verdicts(records(), rooms=rooms)[5] is None  # two tasks have no interval
    assert verdicts(records(), alone={"task": "color"})[8] is False


def test_methods_that_were_not_run() -> None:
    found = verdicts([r for r in records() if r["method"] not in ("mmrl", "cocoop")])
    assert found[3] is None
    assert found[7] is None


def test_runs_of_dear_and_runs_with_other_settings_do_not_count() -> None:
    changed = record("b", "coop", 0.01, 0.01, variant="16 tokens")
    more = [*records(), record("a", "dear", 0.99, 0.99), record("a", "dear+", 0.99, 0.99), changed]
    assert averages(more) == averages(records())


def test_tau_by_hand() -> None:
    assert kendall_tau([1, 2, 3, 4], [10, 20, 30, 40]) == 1
    assert kendall_tau([1, 2, 3, 4], [40, 30, 20, 10]) == -1
    assert kendall_tau([1, 2, 3], [1, 3, 2]) == pytest.approx(1 / 3)  # two pairs of three agree
    assert kendall_tau([1, 1, 2], [1, 2, 3]) == pytest.approx(2 / 3)  # a tie counts for nothing


def test_published_averages_are_of_the_settings_that_were_published() -> None:
    table = published_averages()
    assert table["coop"] == {"base": 82.69, "novel": 63.22, "hm": 71.66}
    assert table["cocoop"]["novel"] == 71.69
    assert "dear" not in table
    assert "mmrl++" not in table
