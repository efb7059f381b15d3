"""Where runs are computed. Light to import, so that commands can show it without loading torch."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from dear.errors import SettingsError

Device = Literal["auto", "cpu", "cuda"]


@dataclass(frozen=True)
class Machines:
    """Where runs are computed.

    Attributes:
        device: Where to compute; auto uses the GPU if there is one.
        jobs: Runs at a time, each in its own process; on several GPUs they are assigned in turn.
        cluster: Make the runs on a Ray cluster: auto, local, or ray://HOST:PORT.
        gpus: GPUs per run on the cluster, for example 0.5; if not given, one if there are any.
        devices: Processes that share each batch of a run (data parallel).
        nodes: Machines that share each batch of a run.
        log: Folder for TensorBoard.
        wandb: Project of Weights & Biases, whose library must be installed and logged in.
    """

    device: Device = "auto"
    jobs: int = 1
    cluster: str | None = None
    gpus: float | None = None
    devices: int = 1
    nodes: int = 1
    log: Path | None = None
    wandb: str | None = None

    def __post_init__(self) -> None:
        if self.jobs < 1:
            raise SettingsError(f"jobs is {self.jobs}: it must be at least 1.")
        ways = {
            "--jobs": self.jobs > 1,
            "--cluster": self.cluster is not None,
            "--devices and --nodes": self.devices * self.nodes > 1,
        }
        if sum(ways.values()) > 1:
            raise SettingsError(f"{' and '.join(w for w, used in ways.items() if used)}: choose one.")
        if self.log is not None and (self.jobs > 1 or self.cluster is not None):
            raise SettingsError("--log is for sequential runs: omit it, or --jobs and --cluster.")
        if self.wandb is not None and (self.jobs > 1 or self.cluster is not None):
            raise SettingsError("--wandb is for sequential runs: omit it, or --jobs and --cluster.")
        if self.gpus is not None and not self.gpus >= 0:
            raise SettingsError(f"gpus is {self.gpus}: it must be at least 0.")
        if self.gpus is not None and self.cluster is None:
            raise SettingsError("--gpus is for runs on a cluster: give --cluster too.")
