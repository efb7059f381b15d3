"""The state of a training run after an epoch: written atomically, read without pickle, loaded only if intact.

A file is a line with its format version and the SHA-256 of the rest, followed by the output of torch.save.
"""

import hashlib
import io
import json
import math
import os
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dear.errors import DearError, OutputError, first_line, warn
from dear.methods.base import Method
from dear.reading.plain import parse_json
from dear.writing import output_file

MARK = b"dear checkpoint 3 "
"""Increased when the contents of checkpoints change."""
MALFORMED = (AttributeError, IndexError, KeyError, OverflowError, RuntimeError, TypeError, ValueError)
"""Exceptions raised on loading a state whose parts have other types or shapes."""
KINDS: dict[str, tuple[type, ...]] = {
    "run": (str,), "epochs": (int,), "steps": (int,), "history": (str,), "method": (dict, OrderedDict),
    "optimizer": (dict,), "best": (dict, OrderedDict, type(None)), "scaling": (dict,),
}  # fmt: skip
"""The parts of a state."""
MEASURED = frozenset(["epoch", "loss", "lr", "seconds"])
"""What is known of each epoch, beside the parts of the loss."""
LONGEST = 10**9
"""Seconds of an epoch: 30 years."""
OF_PARAMETERS = frozenset(["step", "exp_avg", "exp_avg_sq", "momentum_buffer"])
"""What SGD, Adam and AdamW keep of a parameter."""


class CheckpointError(OutputError):
    """A damaged checkpoint.

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
    steps: int,
    scaling: Mapping[str, Any] | None = None,
) -> None:
    """Write the state after ``steps`` optimisation steps, replacing the previous checkpoint atomically.

    ``best`` is the state of the best epoch so far, if the epoch is selected on validation images; ``scaling``
    that of the gradient scaler, empty without one. Raises OutputError if the file cannot be written.
    """
    state = {
        "run": run,
        "epochs": len(history),
        "steps": steps,
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
    torch.save(state, buffer)
    content = buffer.getbuffer()
    with output_file(path, "the checkpoint") as file:
        file.write(MARK + hashlib.sha256(content).hexdigest().encode() + b"\n")
        file.write(content)


def read_state(path: Path) -> dict[str, Any]:
    """Read what ``write_state`` wrote, on the CPU. Raises CheckpointError for any other file."""
    try:
        head, _, content = path.read_bytes().partition(b"\n")
    except OSError as error:
        raise CheckpointError(path, f"it cannot be read: {error.strerror or error}") from error
    if not head.startswith(MARK):
        raise CheckpointError(path, "it is not a checkpoint of this version")
    if head != MARK + hashlib.sha256(content).hexdigest().encode():
        raise CheckpointError(path, "its checksum is wrong: it was changed or truncated after it was written")
    try:
        return dict(torch.load(io.BytesIO(content), map_location="cpu", weights_only=True))
    except Exception as error:  # a damaged file may fail anywhere in torch's reader
        raise CheckpointError(path, first_line(error)) from error


def load_checkpoint(
    path: Path,
    method: Method,
    optimizer: Any,
    run: str,
    *,
    epoch_steps: int,
    run_steps: int,
    selects: bool = False,
    precision: Any = None,
) -> tuple[list[dict[str, Any]], dict[str, Any] | None]:
    """Load the checkpoint if it exists. Returns the epochs done and, if the run ``selects`` an epoch, the
    state of the best one. An epoch has ``epoch_steps`` optimisation steps, the run ``run_steps``: its last
    epoch may have fewer. ``precision`` is Fabric's, whose gradient scaler goes on too, if it has one.

    Raises CheckpointError for a damaged checkpoint, OutputError for one of another run.
    """
    if not path.exists():
        return [], None
    state = read_state(path)
    try:
        _require_kinds(state)
        saved, current = parse_json(state["run"], path), json.loads(run)
        differences = ", ".join(name for name in current if saved.get(name) != current[name])
    except (*MALFORMED, DearError) as error:
        raise CheckpointError(path, f"it does not identify its run: {first_line(error)}") from error
    if differences:
        raise OutputError(
            f"{path} is the checkpoint of another run (different {differences}): "
            "remove it or choose another --out."
        )
    try:
        history = _history(state, epoch_steps, run_steps, selects)
        expected, best = method.state_dict(), None
        if selects and history:
            best = _like(state["best"], expected)
        elif state["best"] is not None:
            raise ValueError("it has the state of a best epoch, but this run does not select one")
        tensors = _like(state["method"], expected)
        scaling = {} if precision is None else precision.state_dict()
        _require_scaling(state["scaling"], scaling)
        moments = checked_optimizer(state["optimizer"], optimizer, state["steps"], exactly=not scaling)
        method.load_state_dict(tensors)
        optimizer.load_state_dict(moments)
        if precision is not None:
            precision.load_state_dict(state["scaling"])
    except (*MALFORMED, DearError) as error:
        raise CheckpointError(path, first_line(error)) from error
    return history, best


def _require_kinds(state: Mapping[str, Any]) -> None:
    """Raise ValueError unless the parts of a state have the types that are written: a list may hold one list
    twice, which holds one twice, and so on, so that its text has no end.
    """
    for name, kinds in KINDS.items():
        if type(state[name]) not in kinds:
            raise ValueError(f"its {name} is of another type")


def _history(
    state: Mapping[str, Any], epoch_steps: int, run_steps: int, selects: bool = False
) -> list[dict[str, Any]]:
    """The epochs of a state. Raises an exception in MALFORMED if the state is inconsistent."""
    history = [dict[str, Any](epoch) for epoch in parse_json(state["history"], "its history")]
    numbers = [epoch["epoch"] for epoch in history]
    if len(numbers) != state["epochs"] or numbers != [*range(1, len(numbers) + 1)]:
        raise ValueError(f"it claims {state['epochs']} epochs, but lists others")
    if state["steps"] != min(len(history) * epoch_steps, run_steps):
        raise ValueError(f"it claims {state['steps']} steps, which does not match {len(history)} epochs")
    if history and (len(history) - 1) * epoch_steps >= run_steps:
        raise ValueError(f"it has {len(history)} epochs, more than the run")
    if not all(isinstance(v, int | float) and math.isfinite(v) for epoch in history for v in epoch.values()):
        raise ValueError("its epochs hold values that are not numbers")
    measured = MEASURED | {"val"} if selects else MEASURED
    if not all(measured <= epoch.keys() == history[0].keys() for epoch in history):
        raise ValueError("its epochs lack values")
    if not all(0 <= epoch["seconds"] <= LONGEST for epoch in history):
        raise ValueError("its epochs took impossible times")
    return history


def _like(state: Mapping[str, Tensor], like: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors alone. Raises ValueError unless they are finite and have the names, shapes and types of the
    method's.
    """
    if state.keys() != like.keys() or not all(_alike(state[name], like[name]) for name in like):
        raise ValueError("its tensors belong to another method")
    if not all(torch.isfinite(tensor).all() for tensor in state.values()):
        raise ValueError("its tensors are not finite")
    return {name: state[name] for name in like}


def _alike(value: Any, like: Tensor) -> bool:
    return isinstance(value, Tensor) and (value.shape, value.dtype) == (like.shape, like.dtype)


def _require_scaling(state: Mapping[str, Any], like: Mapping[str, Any]) -> None:
    """Raise ValueError unless the state of a gradient scaler has the constants of the run's own scaler, and a
    scale and a count that one can reach. Both are empty without a scaler.
    """
    if not isinstance(state, dict) or state.keys() != like.keys():
        raise ValueError("its gradients were scaled in another way")
    if not state:
        return
    constants = like.keys() - {"scale", "_growth_tracker"}
    if any(state[name] != like[name] for name in constants):
        raise ValueError("its gradient scaler has other settings")
    scale, count = state["scale"], state["_growth_tracker"]
    if not isinstance(scale, float) or not 0 < scale < math.inf:
        raise ValueError("its gradients are scaled by an impossible number")
    if not isinstance(count, int) or not 0 <= count < like["growth_interval"]:
        raise ValueError("its gradient scaler has counted an impossible number of steps")


def checked_optimizer(
    saved: Mapping[str, Any], optimizer: Any, steps: int, *, exactly: bool = True
) -> dict[str, Any]:
    """What an optimiser may load of its saved state, compared before a value is copied. A gradient scaler
    skips steps: with one there may be fewer.

    Raises ValueError unless it has the optimiser's own settings but for the learning rate, which is set
    before each step, finite moments of the parameters' shapes, and has made this number of steps, if it
    counts them.
    """
    groups = optimizer.state_dict()["param_groups"]
    if len(groups) != len(saved["param_groups"]) or not all(map(_same, saved["param_groups"], groups)):
        raise ValueError("its optimiser has other settings")
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    moments = dict[int, dict[str, Any]]()
    for number, entry in saved["state"].items():
        if type(number) is not int or not 0 <= number < len(parameters) or not entry.keys() <= OF_PARAMETERS:
            raise ValueError("its optimiser is of another kind")
        count = entry.get("step")
        if count is not None and (float(count) > steps or (exactly and float(count) != steps)):
            raise ValueError(f"it claims {steps} steps, but its optimiser has made others")
        for name, value in entry.items():
            if name == "step" or value is None:
                continue
            if not isinstance(value, Tensor) or value.shape != parameters[number].shape:
                raise ValueError("its optimiser state is for other parameters")
            if not value.is_floating_point() or not torch.isfinite(value).all():
                raise ValueError("its optimiser state is not finite")
        moments[number] = dict(entry)
    return {"state": moments, "param_groups": groups}


def _same(group: Mapping[str, Any], expected: Mapping[str, Any]) -> bool:
    """True if the settings of a group are the same, 1 and True being two, but for the learning rate."""
    return group.keys() == expected.keys() and all(
        type(group[name]) is type(value) and group[name] == value
        for name, value in expected.items()
        if name != "lr"
    )


def set_aside(path: Path) -> Path:
    """Rename a damaged checkpoint so that it is never loaded, with a warning. Raises OutputError."""
    names: Sequence[str] = [path.name + ".damaged", *(f"{path.name}.damaged{n}" for n in range(2, 100))]
    free = next((path.with_name(name) for name in names if not path.with_name(name).exists()), None)
    try:
        if free is None:
            raise OSError("there are too many set-aside checkpoints already")
        os.replace(path, free)
    except OSError as error:
        raise OutputError(f"cannot set the checkpoint {path} aside: {error}. Remove it.") from error
    warn(f"the checkpoint {path} is damaged: renamed to {free.name}.")
    return free


def run_fingerprint(method: Method, images: str, settings: dict[str, Any], seed: int, select: str) -> str:
    """Identity of the run that a checkpoint belongs to; ``images`` is the identity of its images,
    ``select`` the rule that selects the epoch.
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
