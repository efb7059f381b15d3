"""The state of a training after an epoch: written atomically by torch.save, read without pickle."""

import io
import os
from pathlib import Path
from typing import Any

import torch

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
