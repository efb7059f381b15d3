"""The state of a training after each epoch: written atomically by torch.save, read without pickle."""

import io
import json
import os
from collections.abc import Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from dear.errors import OutputError, first_line, warn
from dear.writing import output_file

FORMAT = 4
"""Increased when the contents of checkpoints change."""


class CheckpointError(OutputError):
    """A checkpoint is damaged.

    Attributes:
        path: The checkpoint.
    """

    def __init__(self, path: Path, why: str) -> None:
        self.path = path
        super().__init__(f"the checkpoint {path} is damaged ({why}): remove it to train from the start.")


class TrainingState:
    """All that a training which is interrupted needs to go on: what it changes, and its finished epochs.

    Attributes:
        history: The record of each finished epoch.
        best: The method's state after the best epoch, if one is selected.
    """

    def __init__(
        self,
        method: nn.Module,
        optimizer: torch.optim.Optimizer,
        scaler: torch.amp.GradScaler,
        identity: Mapping[str, Any],
        path: Path | None,
    ) -> None:
        """``identity`` is what the training depends on: a checkpoint only fits one with the same. ``path`` is
        where the state is saved, if anywhere.
        """
        self.method, self.optimizer, self.scaler = method, optimizer, scaler
        self.identity, self.path = json.loads(json.dumps(identity)), path
        self.history: list[dict[str, Any]] = []
        self.best: dict[str, Tensor] | None = None

    @property
    def saved(self) -> Path | None:
        """The checkpoint, once an epoch has been saved."""
        return self.path if self.history else None

    def resume(self) -> None:
        """Take the state from the checkpoint, if there is one; a damaged one is set aside. Raises OutputError
        for one of another training.
        """
        if self.path is None or not self.path.exists():
            return
        initial = deepcopy((self.method.state_dict(), self.optimizer.state_dict()))
        try:
            self._load(self.path)
        except CheckpointError:
            self.method.load_state_dict(initial[0])  # a part of the checkpoint may be loaded
            self.optimizer.load_state_dict(initial[1])
            set_aside(self.path)

    def _load(self, path: Path) -> None:
        state = read_state(path)
        try:
            saved = json.loads(state["run"])
            different = [name for name in self.identity if saved.get(name) != self.identity[name]]
            if different:
                raise OutputError(
                    f"{path} is the checkpoint of another run (different {', '.join(different)}): "
                    "remove it or choose another --out."
                )
            history, best = json.loads(state["history"]), state["best"]
            self.method.load_state_dict(state["method"])
            self.optimizer.load_state_dict(state["optimizer"])
            if self.scaler.is_enabled():
                self.scaler.load_state_dict(state["scaling"])
        except (AttributeError, KeyError, RuntimeError, TypeError, ValueError) as error:
            raise CheckpointError(path, first_line(error)) from error
        self.history, self.best = history, best

    def keep_as_best(self) -> None:
        """Keep a copy of the method's state as that of the best epoch."""
        self.best = {name: tensor.detach().clone() for name, tensor in self.method.state_dict().items()}

    def save(self) -> None:
        """Replace the checkpoint. Raises OutputError."""
        if self.path is not None:
            state = {
                "run": json.dumps(self.identity),
                "history": json.dumps(self.history),
                "method": self.method.state_dict(),
                "optimizer": self.optimizer.state_dict(),
                "best": self.best,
                "scaling": self.scaler.state_dict(),
            }
            write_state(self.path, state)


def write_state(path: Path, state: dict[str, Any]) -> None:
    """Write tensors and plain values atomically. Raises OutputError."""
    buffer = io.BytesIO()  # on a full disk torch.save would abort the process
    torch.save(state | {"format": FORMAT}, buffer)
    with output_file(path, "the checkpoint") as file:
        file.write(buffer.getbuffer())


def read_state(path: Path) -> dict[str, Any]:
    """Read what ``write_state`` wrote, on the CPU. Raises CheckpointError for any other file."""
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
        if state.pop("format") != FORMAT:
            raise ValueError("it is not a checkpoint of this version")
        return dict(state)
    except Exception as error:  # a damaged file may fail anywhere in torch's reader
        raise CheckpointError(path, first_line(error)) from error


def set_aside(path: Path) -> None:
    """Rename a damaged checkpoint so that it is never loaded, with a warning. Raises OutputError."""
    aside = path.with_name(f"{path.name}.damaged")
    try:
        os.replace(path, aside)
    except OSError as error:
        raise OutputError(f"cannot set the checkpoint {path} aside: {error}. Remove it.") from error
    warn(f"the checkpoint {path} is damaged: renamed to {aside.name}.")
