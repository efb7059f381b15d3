"""The benchmarks run at a tiny size and tell what they should."""

import json
import runpy
from pathlib import Path
from typing import Any

import pytest
import torch

pytestmark = pytest.mark.long
FOLDER = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def context(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """``context("train_step", "--tiny")``: what it prints as JSON."""
    monkeypatch.syspath_prepend(str(FOLDER))

    def run(name: str, *arguments: str) -> Any:
        monkeypatch.setattr("sys.argv", [f"{name}.py", *arguments])
        runpy.run_path(str(FOLDER / f"{name}.py"), run_name="__main__")
        printed = capsys.readouterr().out
        return json.loads(printed) if "--json" in arguments else printed

    return run


def test_a_training_step(context: Any) -> None:
    """Ours has naive's loss and gradients, and the least work."""
    options = ("--tiny", "--classes", "7", "--batch", "3", "--repeats", "1", "--no-memory", "--json")
    found = context("train_step", *options)
    naive, ours = found["rows"]
    assert [row["kind"] for row in found["rows"]] == ["naive", "ours"]
    assert max(ours["gap to naive"].values()) < 1e-4
    assert naive["times naive"] == 1
    assert ours["arithmetic allows"] > 1
    assert all(row["seconds"] > 0 and row["step MiB"] is None for row in found["rows"])
    assert found["machine"]["torch"] == torch.__version__
    assert str(Path.home()) not in json.dumps(found)


def test_inference(context: Any) -> None:
    found = context("evaluate", "--tiny", "--batch", "3", "--repeats", "1", "--json")
    official, plain, adapted, _, plus = found["rows"]
    assert official["arithmetic by plain"] is None
    assert [row["kind"] for row in (plain, adapted, plus)] == ["plain", "DeAR", "DeAR+"]
    assert plain["time by plain"] == plain["arithmetic by plain"] == 1
    assert 1 < adapted["arithmetic by plain"] < 1.2  # 5 tokens beside 17 in 2 of 6 small layers
    assert 1 < plus["arithmetic by plain"] < 1.02  # one token's contributions and products of 64 numbers
