"""The state of a training run after an epoch: written atomically by torch.save, read without pickle."""

import io
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from dear.errors import OutputError, first_line, warn
from dear.methods.base import Method
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
        super().__init__(
            f"the checkpoint {path} is damaged ({why}) and was not loaded. Repeat the command with "
            "--start-over to set it aside and train that run from the start."
        )


def save_checkpoint(
    path: Path,
    method: Method,
    optimizer: Any,
    run: str,
    history: list[dict[str, Any]],
    best: dict[str, Any] | None = None,
    *,
    scaling: Mapping[str, Any] | None = None,
) -> None:
    """Write the state after an epoch, replacing the previous checkpoint atomically.

    ``run`` is the `run_fingerprint`. ``best`` is the state of the best epoch so far, if the epoch is selected
    on validation images; ``scaling`` is the state of the gradient scaler, empty without one. Raises
    OutputError if the file cannot be written.
    """
    state = {
        "run": run,
        "history": json.dumps(history),
        "method": method.state_dict(),
        "optimizer": optimizer.state_dict(),
        "best": best,
        "scaling": dict(scaling or {}),
    }
    write_state(path, state)


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


def load_checkpoint(
    path: Path, method: Method, optimizer: Any, run: str, precision: Any = None
) -> tuple[list[dict[str, Any]], dict[str, Any] | None]:
    """Load the checkpoint if it exists. Returns the history of the finished epochs and, if the run selects an
    epoch, the state of the best one. ``precision`` is Fabric's: its gradient scaler, if any, is restored too.

    Raises CheckpointError for a damaged checkpoint, OutputError for one of another run.
    """
    if not path.exists():
        return [], None
    state = read_state(path)
    try:
        saved, current = json.loads(state["run"]), json.loads(run)
        if differences := ", ".join(name for name in current if saved.get(name) != current[name]):
            raise OutputError(
                f"{path} is the checkpoint of another run (different {differences}): "
                "remove it or choose another --out."
            )
        method.load_state_dict(state["method"])
        optimizer.load_state_dict(state["optimizer"])
        if precision is not None:
            precision.load_state_dict(state["scaling"])
        return json.loads(state["history"]), state["best"]
    except (AttributeError, KeyError, RuntimeError, TypeError, ValueError) as error:
        raise CheckpointError(path, first_line(error)) from error


def set_aside(path: Path) -> Path:
    """Rename a damaged checkpoint so that it is never loaded, with a warning. Raises OutputError."""
    number, free = 1, path.with_name(f"{path.name}.damaged")
    while free.exists():
        number += 1
        free = path.with_name(f"{path.name}.damaged{number}")
    try:
        os.replace(path, free)
    except OSError as error:
        raise OutputError(f"cannot set the checkpoint {path} aside: {error}. Remove it.") from error
    warn(f"the checkpoint {path} is damaged: renamed to {free.name}.")
    return free


def run_fingerprint(method: Method, images: str, settings: dict[str, Any], seed: int, select: str) -> str:
    """The identity, as JSON, of the run that a checkpoint belongs to. ``images`` is the identity of its
    images, ``select`` the rule by which its epoch is selected.
    """
    fields = {
        "method": method.name,
        "method_settings": method.fingerprint_fields(),
        "weights": method.clip.identity.sha256,
        "classes": method.classnames,
        "images": images,
        "seed": seed,
        "select": select,
    }
    return json.dumps(fields | {"train": settings})
