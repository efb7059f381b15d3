"""The benchmarks run with a small architecture and tell what they should."""

import json
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import open_clip.factory
import pytest
import torch

from tests.unit.backbone.prime import CONFIG, NAME

pytestmark = pytest.mark.long
FOLDER = Path(__file__).parents[2] / "benchmarks"
Result = dict[str, Any]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Result]:
    """``run("predict", "--batch", "3")``: what it writes, without the memory that other processes measure."""
    monkeypatch.syspath_prepend(str(FOLDER))
    monkeypatch.setitem(open_clip.factory._MODEL_CONFIGS, NAME, CONFIG)

    def result(name: str, *arguments: str) -> Result:
        import measure

        monkeypatch.setattr(measure, "in_child", lambda _: {"step MiB": None})
        out = tmp_path / "result.json"
        words = ["--model", NAME, "--repeats", "1", "--out", str(out), *arguments]
        monkeypatch.setattr("sys.argv", [f"{name}.py", *words])
        runpy.run_path(str(FOLDER / f"{name}.py"), run_name="__main__")
        return json.loads(out.read_text(encoding="utf-8"))  # type: ignore[no-any-return]

    return result


def test_what_regularization_adds(run: Callable[..., Result]) -> None:
    """The layers of the span without tokens, which are fewer than those of the whole tower."""
    found = run("train_step", "--regularization", "--classes", "7", "--batch", "3")
    plain, usual, second = found["rows"]
    assert (plain["time"], plain["arithmetic"]) == (1, 1)
    assert 1 < usual["arithmetic"] < second["arithmetic"]


def test_a_training_step(run: Callable[..., Result]) -> None:
    """Ours has the least work."""
    found = run("train_step", "--classes", "7", "--batch", "3")
    naive, ours = found["rows"]
    assert [row["kind"] for row in found["rows"]] == ["naive", "ours"]
    assert naive["times naive"] == 1
    assert ours["arithmetic allows"] > 1
    assert all(row["seconds"] > 0 for row in found["rows"])
    assert found["machine"]["torch"] == torch.__version__
    assert str(Path.home()) not in json.dumps(found)


def test_inference(run: Callable[..., Result]) -> None:
    """DeAR+ adds one token's contributions and small products, DeAR five tokens to some layers."""
    official, plain, adapted, _, plus = run("predict", "--batch", "3")["rows"]
    assert official["arithmetic by plain"] is None
    assert [row["kind"] for row in (plain, adapted, plus)] == ["plain", "DeAR", "DeAR+"]
    assert plain["time by plain"] == plain["arithmetic by plain"] == 1
    assert 1 < plus["arithmetic by plain"] < adapted["arithmetic by plain"] < 2


def test_inference_of_files(run: Callable[..., Result]) -> None:
    """Both loops give most images the same class, though they resize in another way."""
    rows = run("predict", "--files", "3")["rows"]
    assert [row["kind"] for row in rows[:3]] == ["open_clip", "open_clip, 2 workers", "dear, 32-true"]
    assert rows[1]["same class"] == rows[0]["same class"] == 1
    assert all(row["images/s"] > 0 for row in rows)
