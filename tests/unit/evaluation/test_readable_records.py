"""No run leaves a record that cannot be read: what is known of it is checked before it begins."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dear.backbone.clip import Clip
from dear.errors import DataError
from dear.evaluation import runs
from dear.evaluation.plan import Plan
from dear.evaluation.records import check_facts, read_record
from dear.evaluation.runs import run_all
from tests.unit.training.world import noise_dataset


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"seed": -1}, "its seed is -1: it must be a whole number of at least 0"),
        ({"seed": 2**63}, "seed is 9223372036854775808: it must be a whole number"),
    ],
)
def test_what_no_record_may_hold_is_refused_before_a_run(
    changes: dict[str, Any], reason: str, small_clip: Clip, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run() -> list[dict[str, Any]]:
        plan = Plan("zero-shot", **changes.get("plan", {}))
        dataset = replace(noise_dataset(), **changes.get("dataset", {}))
        return run_all(small_clip, [dataset], [plan], seeds=[changes.get("seed", 1)], shots=2, out=tmp_path)

    with monkeypatch.context() as patched:
        patched.setattr(runs, "Trial", None)  # nothing is computed
        with pytest.raises(
            DataError, match=rf"'zero-shot' on '.*' would leave a record .*: .*{reason}"
        ) as told:
            run()
    assert "\n" not in str(told.value)
    assert not [*tmp_path.glob("*.json")]
    with monkeypatch.context() as patched:
        patched.setattr(runs, "check_facts", lambda _facts: None)
        run()
    with pytest.raises(DataError, match=reason):  # what is refused could not have been read
        read_record(next(tmp_path.glob("*.json")))


def test_the_record_of_another_run_under_a_runs_name(small_clip: Clip, tmp_path: Path) -> None:
    """It was taken for the run's, so that a table had one seed twice."""
    options: dict[str, Any] = {"plans": [Plan("zero-shot")], "shots": 1, "out": tmp_path}
    for seed in (1, 2):
        run_all(small_clip, [noise_dataset()], seeds=[seed], **options)
    first, second = sorted(tmp_path.glob("*.json"))
    first.write_bytes(second.read_bytes())
    for label in ("a", "b"):  # of one method with one key
        run_all(small_clip, [noise_dataset()], **options | {"plans": [Plan("zero-shot", label=label)]})
    named, other = (next(tmp_path.glob(f"*-{label}-*.json")) for label in "ab")
    named.write_bytes(other.read_bytes())
    with pytest.raises(DataError, match="it is that of another run, whose variant is 'b'"):
        run_all(small_clip, [noise_dataset()], **options | {"plans": [Plan("zero-shot", label="a")]})
    with pytest.raises(DataError, match=r"seed1.*another run, whose key is '\w{16}'"):
        run_all(small_clip, [noise_dataset()], seeds=[1], **options)


def facts(**changes: Any) -> dict[str, Any]:
    dataset = {"name": "tools", "title": "Tools", "identity": "x"}
    return {
        "schema": 2, "protocol": "base-to-novel", "method": "dear", "dataset": dataset, "targets": [],
        "weights": {"sha256": "ab"}, "seed": 1, "shots": 16,
    } | changes  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"settings": {"method": {"beta": float("inf")}}}, "Infinity"),
    ],
)
def test_other_facts(changes: dict[str, Any], reason: str) -> None:
    check_facts(facts())
    with pytest.raises(
        DataError, match=rf"'dear' on 'tools' would leave a record that cannot be read: .*{reason}"
    ):
        check_facts(facts(**changes))
