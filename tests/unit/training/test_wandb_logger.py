"""Weights & Biases: several runs in turn keep their own epochs; what is missing is one line."""

import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from dear.errors import OutputError, SettingsError
from dear.libraries import LOOKING_AROUND
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


def test_a_strangers_folder_sets_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """W&B takes the server's address from wandb/settings of the current folder when it is set up, and sent
    the user's key there; git runs what the settings of a folder name.
    """
    seen = dict[str, Any]()

    def init(project: str, **options: Any) -> Run:
        seen.update(options, init=Path.cwd(), project=project)
        return Run()

    monkeypatch.delenv("WANDB_DIR", raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "wandb", library(init, lambda: seen.update(setup=Path.cwd())))
    make_fabric(CPU, "auto", wandb="toys")
    assert seen == {
        "setup": Path(sys.prefix), "init": tmp_path, "dir": str(tmp_path), "project": "toys",
        "settings": {"disable_git": True, "disable_code": True},
    }  # fmt: skip
    assert "wandb" in LOOKING_AROUND
    (tmp_path / "wandb").symlink_to(tmp_path)
    with pytest.raises(OutputError, match="wandb is a link, which is not followed"):
        make_fabric(CPU, "auto", wandb="toys")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path / "mine"))
    make_fabric(CPU, "auto", wandb="toys")
    assert seen["dir"] == str(tmp_path / "mine")
