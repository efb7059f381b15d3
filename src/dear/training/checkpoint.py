"""The state of a training run after an epoch: written whole or not at all, read without pickle."""

import json
from pathlib import Path
from typing import Any

import torch

from dear.data.files import whole
from dear.errors import OutputError, first_line
from dear.methods.base import Method


def save_checkpoint(
    path: Path,
    method: Method,
    optimizer: Any,
    run: str,
    history: list[dict[str, Any]],
    best: dict[str, Any] | None = None,
) -> None:
    """Write the state, replacing the last one in a single step. ``best`` is the state of the best epoch so
    far, where one is chosen. Raises OutputError if the place cannot be written.
    """
    state = {
        "run": run,
        "history": json.dumps(history),
        "method": method.state_dict(),
        "optimizer": optimizer.state_dict(),
        "best": best,
    }
    write_state(path, state)


def write_state(path: Path, state: dict[str, Any]) -> None:
    """Write tensors and plain values whole or not at all. Raises OutputError."""
    try:
        with whole(path) as file:  # torch.save would report a path that it cannot open as a RuntimeError
            torch.save(state, file)
    except OSError as error:
        raise OutputError(
            f"cannot write the checkpoint {path}: {error}. Choose another place with --out."
        ) from error


def read_state(path: Path, device: torch.device) -> dict[str, Any]:
    """Read what ``write_state`` wrote. Raises OutputError for a damaged or foreign file."""
    try:
        return dict(torch.load(path, map_location=device, weights_only=True))
    except Exception as error:  # a foreign file may fail anywhere in the reader
        raise OutputError(
            f"{path} cannot be read as a checkpoint ({first_line(error)}): remove it or choose another --out."
        ) from error


def load_checkpoint(
    path: Path, method: Method, optimizer: Any, run: str
) -> tuple[list[dict[str, Any]], dict[str, Any] | None]:
    """Take up the state if there is one; returns the epochs done and the state of the best. Raises
    OutputError for one of another run.
    """
    if not path.exists():
        return [], None
    state = read_state(path, method.clip.image.projection.device)
    if state.get("run") != run:
        was, now = json.loads(state.get("run", "{}")), json.loads(run)
        other = ", ".join(name for name in now if was.get(name) != now[name])
        raise OutputError(
            f"{path} is the checkpoint of another run (other {other}): remove it or choose another --out."
        )
    method.load_state_dict(state["method"])
    optimizer.load_state_dict(state["optimizer"])
    return list(json.loads(state["history"])), state.get("best")


def run_facts(method: Method, images: str, settings: dict[str, Any], seed: int, select: str) -> str:
    """What a checkpoint belongs to; ``images`` is their identity, ``select`` how the epoch is chosen."""
    facts = {
        "method": method.name,
        "method_settings": method.fingerprint_fields(),
        "weights": method.clip.identity.sha256,
        "classes": method.classnames,
        "images": images,
        "seed": seed,
        "select": select,
    }
    return json.dumps(facts | {"train": settings})
