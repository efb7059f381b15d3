"""Weights & Biases through its own library, as a logger of Fabric."""

from argparse import Namespace
from collections.abc import Mapping
from importlib import import_module
from typing import Any

from lightning_fabric.loggers.logger import Logger
from lightning_fabric.utilities.rank_zero import rank_zero_only

from dear.errors import SettingsError


class WandbLogger(Logger):
    """One run of W&B for all runs of a command; the metrics of each, named LABEL/METRIC, are drawn over
    its own epochs.

    Raises SettingsError if the library is missing or cannot begin a run.
    """

    def __init__(self, project: str) -> None:
        self.project, self.known = project, set[str]()
        try:
            wandb = import_module("wandb")
        except ModuleNotFoundError as error:
            raise SettingsError("W&B is not installed: pip install wandb, or omit --wandb.") from error
        self.run: Any = None
        if getattr(rank_zero_only, "rank", 0) == 0:
            try:
                self.run = wandb.init(project=project)
            except Exception as error:  # its own kinds: no key, no network, a name that it refuses
                raise SettingsError(
                    f"W&B cannot begin a run: {error}. Log in with `wandb login`, set WANDB_MODE=offline, or "
                    "omit --wandb."
                ) from error

    @property
    def name(self) -> str:
        return self.project

    @property
    def version(self) -> str:
        return "" if self.run is None else str(self.run.id)

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Log metrics. The step is not passed on: W&B drops what goes back, as the first epoch of the second
        run does; the epoch among the metrics takes its place.
        """
        del step
        for label in {name.rpartition("/")[0] for name in metrics} - self.known:
            self.run.define_metric(f"{label}/*", step_metric=f"{label}/epoch")
            self.known.add(label)
        self.run.log(dict(metrics))

    def log_hyperparams(self, params: dict[str, Any] | Namespace, *args: Any, **kwargs: Any) -> None:
        """Settings are in the run records."""

    @rank_zero_only
    def finalize(self, status: str) -> None:
        """End the run."""
        self.run.finish(exit_code=0 if status == "success" else 1)
