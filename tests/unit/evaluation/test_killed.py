"""kill -9 in the middle of a run: no file is damaged, and the run goes on to the same bits."""

import json
import random
from pathlib import Path
from typing import Any

import pytest

from dear.evaluation.records import read_record
from dear.training.checkpoint import read_state
from dear.writing import UNFINISHED
from tests.unit.evaluation.children import TRAINING, run_into, run_until, server


def numbers(record: dict[str, Any]) -> Any:
    """The record without what the clock and the memory tell; JSON keeps every bit of a float."""
    kept = {k: v for k, v in record.items() if k not in ("seconds", "peak_memory", "train")}
    epochs = [{k: v for k, v in e.items() if k != "seconds"} for e in record["train"]["epochs"]]
    return json.loads(json.dumps([kept, epochs]))


def start(out: Path, last: int | None) -> tuple[int | None, Any]:
    """The exit code of such a run in another process, and what it told."""
    context = server()
    told = context.SimpleQueue()
    child = context.Process(target=run_until, args=(out, last, told))
    child.start()
    child.join()
    return child.exitcode, None if told.empty() else told.get()


@pytest.mark.parametrize("times", [2, pytest.param(8, marks=pytest.mark.long)])
def test_killed_at_a_random_moment(times: int, tmp_path: Path) -> None:
    (whole,) = run_into(tmp_path / "whole")
    code, moments = start(tmp_path / "counted", None)
    assert code == 0
    assert moments > 2 * TRAINING.epochs  # a checkpoint for each epoch, at least
    resumed = 0
    for last in random.Random(7).sample(range(1, moments + 1), times):
        out = tmp_path / str(last)
        assert start(out, last) == (-9, None)
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
    assert resumed
