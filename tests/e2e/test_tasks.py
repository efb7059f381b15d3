"""`dear tasks`: what it lists, and the check of the facts, as a user runs it."""

import json
import re
from pathlib import Path

import pytest

from dear.backbone.load import load_clip
from dear.cli.main import main
from dear.data.fewshot import ClassSubset, base_novel
from dear.data.world.tasks import load_task
from dear.errors import SettingsError
from dear.evaluation.metrics import evaluate
from dear.methods.zero_shot.method import ZeroShot
from tools import check_tasks


def test_tasks_are_listed_with_the_looks_of_their_classes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tasks", "--json"]) == 0
    tasks = {task["name"]: task for task in json.loads(capsys.readouterr().out)["tasks"]}
    assert len(tasks) == 31
    assert tasks["holiday-albums"]["classes"] == 120
    assert tasks["holiday-albums-15b"]["classes"] == 30
    assert tasks["street-signs"]["own"] == "hue to 0.8, turned to 0.3"
    assert tasks["street-signs"]["habits"] == "texture 0.8, place 0.8"
    assert main(["tasks", "--tasks", "mixed-paints"]) == 0
    assert "hue to 0.8, cast to 0.8" in capsys.readouterr().out


@pytest.mark.long
def test_facts_are_checked_on_images_of_their_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--validate", str(tmp_path), "--tasks", "worn-fabrics", "--methods", "zero-shot"]
    check_tasks.main(words)
    text = " ".join(capsys.readouterr().out.split())
    task, method = load_task("worn-fabrics"), ZeroShot(load_clip("tiny"))
    percent = []
    for half in base_novel(len(task.classnames)):
        method.set_classes([task.classnames[label] for label in half], [task.template])
        percent.append(100 * evaluate(method, ClassSubset(task.check, half)).accuracy)
    assert "{:.1f} / {:.1f}".format(*percent) in text
    assert text.count("not run") >= 2  # CoOp and CoCoOp
    (record,) = tmp_path.glob("*.json")
    written = record.stat().st_mtime_ns
    check_tasks.main(words)
    assert "does not hold" in capsys.readouterr().out
    assert record.stat().st_mtime_ns == written


@pytest.mark.parametrize("name", ["dear", "dear+"])
def test_tasks_are_not_set_by_dear(name: str, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=re.escape(f"the facts are about other methods than {name};")):
        check_tasks.main(["--validate", str(tmp_path / "out"), "--methods", f"zero-shot,{name}"])
    assert not (tmp_path / "out").exists()
