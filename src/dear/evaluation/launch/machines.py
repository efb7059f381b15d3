"""Where runs are computed. Light to import, so that commands can show it without loading torch."""

from dataclasses import dataclass
from pathlib import Path

from dear.errors import SettingsError


@dataclass(frozen=True)
class Machines:
    """Where runs are computed.

    Attributes:
        device: auto, cpu or cuda.
        jobs: Runs at a time, each in a process of its own; on GPUs they are dealt out in turn.
        cluster: A Ray cluster instead: auto, local, or ray://HOST:PORT.
        gpus: GPUs a run on the cluster, 0.5 say; all that the device needs if None.
        devices: Processes that share each batch of a run.
        nodes: Machines that share each batch of a run.
        log: A folder for TensorBoard.
    """

    device: str = "auto"
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
