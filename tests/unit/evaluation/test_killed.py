"""kill -9 in the middle of a run: no file is damaged, and the run goes on to the same bits."""

import json
import random
from pathlib import Path
from typing import Any

import pytest

from dear.evaluation.records import read_record
from dear.training.checkpoint import read_state
from dear.writing import UNFINISHED
from tests.unit.evaluation.children import TRAINING, run_into, server


def numbers(record: dict[str, Any]) -> Any:
    """The record without what the clock and the memory tell; JSON keeps every bit of a float."""
    kept = {k: v for k, v in record.items() if k not in ("seconds", "peak_memory", "train")}
    epochs = [{k: v for k, v in e.items() if k != "seconds"} for e in record["train"]["epochs"]]
    return json.loads(json.dumps([kept, epochs]))


@pytest.mark.parametrize("times", [3, pytest.param(10, marks=pytest.mark.long)])
def test_killed_at_a_random_moment(times: int, tmp_path: Path) -> None:
    (whole,) = run_into(tmp_path / "whole")
    context, chance = server(), random.Random(7)
    killed = resumed = 0
    for attempt in range(times):
        out = tmp_path / str(attempt)
        told = context.Queue()
        child = context.Process(target=run_into, args=(out, told))
        child.start()
        for _ in range(chance.randint(1, TRAINING.epochs)):
            told.get(timeout=120)
        child.kill()
        child.join()
        killed += child.exitcode == -9
        for path in out.rglob("*"):
            if path.suffix == ".json":
                read_record(path)
            if path.suffix == ".pt":
                history = json.loads(read_state(path)["history"])
                assert 1 <= len(history) <= TRAINING.epochs
                resumed += 1
        (again,) = run_into(out)
        assert numbers(again) == numbers(whole)
        assert [*(out / UNFINISHED).iterdir()] == []
    assert killed >= times // 2
    assert resumed >= times // 2
