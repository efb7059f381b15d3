"""The study's tables from made records, by hand."""

from typing import Any

import pytest

from dear.data.world.tasks import downstream_names
from tests.unit.report.samples import record
from tools.document_study import by_task, facts_table, gap, mean_of, methods_table, steps_of, variants_table
from tools.headroom import Headroom

TASKS = downstream_names()


def runs(method: str, base: float, novel: float, **more: Any) -> list[dict[str, Any]]:
    """A run on each task; on the four unseen tasks novel is 0.1 higher."""
    unseen = downstream_names("unseen")
    return [record(task, method, base, novel + 0.1 * (task in unseen), **more) for task in TASKS]


def test_means_and_gaps_by_hand() -> None:
    halves = {"a": (60.0, 80.0), "b": (80.0, 60.0)}
    assert mean_of(halves, ["a", "b"]) == (70, 70, 70)
    assert mean_of(halves, ["a"])[2] == pytest.approx(2 * 60 * 80 / 140)
    # Differences of HM: 10, 20 and 30; standard deviation 10, t of two degrees of freedom 4.3027.
    other = dict.fromkeys("abc", (50.0, 50.0))
    more = {"a": (60.0, 60.0), "b": (70.0, 70.0), "c": (80.0, 80.0)}
    assert gap(more, other, ["a", "b", "c"]) == "+20.00 ± 24.84"
    assert gap(more, other, ["a", "b"]) == "+15.00"
    assert gap(more, other, ["a"]) == "+10.00"


def test_seeds_are_averaged() -> None:
    both = [record("a", "coop", 0.5, 0.6, seed=1), record("a", "coop", 0.7, 0.8, seed=2)]
    assert by_task(both)["a"] == pytest.approx((60, 70))


def test_methods_are_in_the_order_of_their_hm_and_incomplete_ones_left_out() -> None:
    found = [*runs("coop", 0.9, 0.6), *runs("zero-shot", 0.6, 0.6), record("mixed-paints", "maple", 0.9, 0.9)]
    lines = methods_table(found).splitlines()
    assert [line.split(" | ")[0] for line in lines[2:]] == ["| zero-shot", "| coop"]
    # base 60; novel 60 and 70 on four of twelve: HM 60 on the calibrated, 64.62 on the unseen, 61.62 on all.
    assert lines[2].startswith("| zero-shot | 60.00 | 63.33 | 61.62 | 60.00 | 64.62 |  | 1 | 0 | 0 |")


def test_large_tasks_have_a_table_of_their_own() -> None:
    large, unseen = downstream_names(size="large"), downstream_names("unseen", "large")
    found = [record(task, "coop", 0.8, 0.6 + 0.2 * (task in unseen)) for task in large]
    found += [record(task, "zero-shot", 0.5, 0.5) for task in large]
    lines = methods_table([*found, *runs("maple", 0.9, 0.9)], "large").splitlines()
    assert "HM, two calibrated | HM, two unseen" in lines[0]
    assert len(lines) == 4
    # base 80; novel 60 on the calibrated, 80 on the unseen: HM 68.57, 80, and 74.67 of 80 and 70.
    assert lines[3].startswith("| coop | 80.00 | 70.00 | 74.67 | 68.57 | 80.00 |")


def test_steps_follow_from_images_batch_and_epochs() -> None:
    """5 images in batches of 2 are 3 steps an epoch, or 2 if the last is dropped."""
    train = {"epochs": [{"loss": 1.0}] * 7}
    run = record("a", "coop", 0.5, 0.5, train=train, fewshot={"indices": [3, 5, 7, 11, 13]})
    assert steps_of(run | {"settings": {"train": {"batch": 2}}}) == 21
    assert steps_of(run | {"settings": {"train": {"batch": 2, "drop_last": True}}}) == 14
    assert steps_of(record("a", "zero-shot", 0.5, 0.5, fewshot=None)) == 0
    assert steps_of(run | {"transductive": True}) is None
    assert steps_of(run | {"teacher": {"method": "promptsrc"}}) is None


def test_steps_of_records_without_settings_of_training_are_not_told() -> None:
    assert steps_of(record("a", "coop", 0.5, 0.5)) is None


def test_variants_are_compared_on_their_seeds() -> None:
    default = [*runs("dear", 0.6, 0.6), *runs("dear", 0.9, 0.9, seed=2)]
    for run in default:
        run["results"]["base"]["decoupled"] = run["results"]["novel"]["decoupled"] = 0.5
    lines = variants_table(default, runs("dear", 0.6, 0.6, variant="batch 4")).splitlines()
    assert lines[2] == "| batch 4 | 60.00 | 63.33 | 61.62 | +0.00 ± 0.00 | +0.00 ± 0.00 |"
    assert lines[3].startswith("| default | 60.00 | 63.33 | 61.62 |")
    assert lines[4].startswith("| default, class feature alone | 50.00 | 50.00 | 50.00 | -11.5")


def test_facts_of_large_tasks_leave_out_tasks_of_one_factor() -> None:
    large = downstream_names(size="large")
    found = [record(task, method, 0.6, 0.7) for task in large for method in ("zero-shot", "coop")]
    rooms = {task: Headroom(base=60, novel=70, probe=90, bias_base=61, bias_novel=69) for task in large}
    lines = facts_table(found, rooms, "large").splitlines()
    assert "| two calibrated | two unseen | all four |" in lines[0]
    assert [line[2] for line in lines[2:]] == ["1", "1", "2", "2", "3", "3", "4", "4"]
    assert "| 60.0 / 70.0 | 60.0 / 70.0 | 60.0 / 70.0 |" in lines[2]
