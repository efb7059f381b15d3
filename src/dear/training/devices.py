"""Where a run is computed and logged: one device, or processes that share each batch (data parallel)."""

import logging
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import torch
from lightning_fabric import Fabric
from lightning_fabric.strategies.ddp import DDPStrategy
from torch import Tensor

from dear.backbone.choice import HALF, Precision
from dear.backbone.precision import device_precision
from dear.errors import OutputError, SettingsError, installation


def make_fabric(
    device: torch.device,
    precision: Precision,
    *,
    devices: int = 1,
    nodes: int = 1,
    log: Path | None = None,
) -> Fabric:
    """The Fabric of a device, or of ``devices`` processes on each of ``nodes`` machines.

    ``log`` is a folder for TensorBoard. Raises SettingsError for numbers below 1, for more GPUs than there
    are or without TensorBoard, OutputError for a folder that cannot be written to.
    """
    if devices < 1 or nodes < 1:
        raise SettingsError(f"{devices} devices on {nodes} nodes: both must be at least 1.")
    if device.type == "cuda" and devices > torch.cuda.device_count():
        raise SettingsError(
            f"{devices} devices were requested, but {torch.cuda.device_count()} GPUs exist: lower --devices."
        )
    logging.getLogger("lightning_fabric.utilities.rank_zero").setLevel(
        logging.WARNING
    )  # it tells which devices it chose
    parallel = devices * nodes > 1
    indices: Any = devices if parallel or device.index is None else [device.index]
    resolved = device_precision(precision, device)
    return Fabric(
        accelerator=device.type,
        devices=indices,
        num_nodes=nodes,
        # Some methods do not use every parameter in every step. No process needs another's buffers: they are
        # frozen (masks, text features), or belong to the process's own images and are not read in training.
        strategy=DDPStrategy(find_unused_parameters=True, broadcast_buffers=False) if parallel else "auto",
        # Weights that are in float16 from the start leave Fabric nothing to cast.
        precision="32-true" if resolved == HALF else resolved,  # type: ignore[arg-type]
        loggers=[] if log is None else [_tensorboard(log)],
    )


def share(items: int, rank: int, world: int) -> tuple[slice, float]:
    """A process's part of a batch, and the weight of its mean loss.

    The mean over processes of weight x mean loss is the mean loss of the whole batch. A process without
    images in its part computes the first one with weight 0, because all processes must take every step.
    """
    start, stop = rank * items // world, (rank + 1) * items // world
    if start == stop:
        return slice(0, 1), 0.0
    return slice(start, stop), (stop - start) * world / items


def sum_over_processes(fabric: Fabric, values: list[float], device: torch.device) -> list[float]:
    """Sum each value over all processes."""
    if fabric.world_size == 1:
        return values
    kind = torch.float32 if device.type == "mps" else torch.float64
    total: Any = fabric.all_reduce(torch.tensor(values, dtype=kind, device=device), reduce_op="sum")
    assert isinstance(total, Tensor)
    return [float(value) for value in total]


def _tensorboard(folder: Path) -> Any:
    from lightning_fabric.loggers.tensorboard import TensorBoardLogger

    try:
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise OutputError(f"cannot write to {folder}: {error}. Choose another folder with --log.") from error
    try:
        return TensorBoardLogger(root_dir=folder, name="")
    except ModuleNotFoundError as error:
        raise SettingsError(f"TensorBoard is not installed: {installation('log')}, or omit --log.") from error
