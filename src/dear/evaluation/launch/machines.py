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
        device: Where to compute; auto takes the GPU if there is one.
        jobs: Runs at a time, each in a process of its own; on several GPUs they are dealt out in turn.
        cluster: Make the runs on a Ray cluster: auto, local, or ray://HOST:PORT.
        gpus: GPUs a run on the cluster, 0.5 say; one where there are any, if not given.
        devices: Processes that share each batch of a run (data parallel).
        nodes: Machines that share each batch of a run.
        log: Folder for TensorBoard.
    """

    device: Device = "auto"
    jobs: int = 1
    cluster: str | None = None
    gpus: float | None = None
    devices: int = 1
    nodes: int = 1
    log: Path | None = None

    def __post_init__(self) -> None:
        if self.jobs < 1:
            raise SettingsError(f"jobs is {self.jobs}: it must be at least 1.")
        ways = {
            "--jobs": self.jobs > 1,
            "--cluster": self.cluster is not None,
            "--devices and --nodes": self.devices * self.nodes > 1,
        }
        if sum(ways.values()) > 1:
            raise SettingsError(f"{' and '.join(w for w, used in ways.items() if used)}: give one of them.")
        if self.log is not None and (self.jobs > 1 or self.cluster is not None):
            raise SettingsError("--log is for runs in turn: leave it or --jobs and --cluster out.")
        if self.gpus is not None and not self.gpus >= 0:
            raise SettingsError(f"gpus is {self.gpus}: it must be at least 0.")
        if self.gpus is not None and self.cluster is None:
            raise SettingsError("--gpus is for runs on a cluster: give --cluster too.")
