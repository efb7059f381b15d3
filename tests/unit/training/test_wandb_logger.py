"""Weights & Biases: several runs in turn keep their own epochs; what is missing is one line."""

import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from dear.errors import SettingsError
from dear.training.devices import make_fabric

CPU = torch.device("cpu")


class Run:
    """What W&B's run is asked."""

    id = "abc"

    def __init__(self) -> None:
        self.logged: list[dict[str, Any]] = []
        self.axes: dict[str, str] = {}

    def define_metric(self, name: str, step_metric: str) -> None:
        self.axes[name] = step_metric

    def log(self, metrics: dict[str, Any]) -> None:
        self.logged.append(metrics)


def library(init: Callable[..., Any], setup: Callable[[], None] = lambda: None) -> SimpleNamespace:
    return SimpleNamespace(init=init, setup=setup, Settings=dict)


def test_each_run_is_drawn_over_its_own_epochs(monkeypatch: pytest.MonkeyPatch) -> None:
    run, projects = Run(), list[str]()

    def init(project: str, **_: Any) -> Run:
        projects.append(project)
        return run

    monkeypatch.setitem(sys.modules, "wandb", library(init))
    fabric = make_fabric(CPU, "auto", wandb="toys")
    for label in ("one", "two"):
        for epoch in (1, 2):
            fabric.log_dict({f"{label}/epoch": epoch, f"{label}/loss": 1 / epoch}, step=epoch)
    assert projects == ["toys"]
    assert run.axes == {"one/*": "one/epoch", "two/*": "two/epoch"}
    assert run.logged[1] == {"one/epoch": 2, "one/loss": 0.5}
    assert len(run.logged) == 4


def test_a_library_that_is_missing_or_not_logged_in_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(SettingsError, match="pip install wandb, or omit --wandb"):
        make_fabric(CPU, "auto", wandb="toys")

    def refuse(project: str, **_: Any) -> None:
        raise RuntimeError(f"no key for {project}")

    monkeypatch.setitem(sys.modules, "wandb", library(refuse))
    with pytest.raises(SettingsError, match="no key for toys"):
        make_fabric(CPU, "auto", wandb="toys")


def test_its_files_go_where_the_user_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = list[str]()

    def init(dir: str, **_: Any) -> Run:
        seen.append(dir)
        return Run()

    monkeypatch.delenv("WANDB_DIR", raising=False)
    monkeypatch.setitem(sys.modules, "wandb", library(init))
    make_fabric(CPU, "auto", wandb="toys")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path / "mine"))
    make_fabric(CPU, "auto", wandb="toys")
    assert seen == [".", str(tmp_path / "mine")]
