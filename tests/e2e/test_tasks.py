"""`dear tasks` lists the tasks and the looks of their classes."""

import json

import pytest

from dear.cli.main import main


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
