"""A gradient scaler (16-mixed) goes on where an interrupted run stopped: on the CPU, in float32."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning_fabric import Fabric
from lightning_fabric.plugins import MixedPrecision

from dear.backbone.clip import Clip, tensors_hash
from dear.progress import TrainingStep
from dear.training.loop import train
from dear.training.settings import TrainSettings
from tests.unit.training.world import few, small_dear

SETTINGS = TrainSettings(epochs=4, batch=3, lr=1e-2, precision="32-true")


def scaled(scale: float = 2.0**10) -> Fabric:
    """A Fabric whose scaler doubles its scale after each 5 steps, and halves it after one that overflows."""
    scaler = torch.amp.GradScaler("cpu", init_scale=scale, growth_interval=5)
    return Fabric(accelerator="cpu", devices=1, plugins=MixedPrecision("16-mixed", "cpu", scaler))


def losses(history: list[dict[str, Any]]) -> list[float]:
    return [epoch["loss"] for epoch in history]


def stop_after(epoch: int) -> Callable[[TrainingStep], None]:
    def stop(step: TrainingStep) -> None:
        if step.ends_epoch and step.epoch == epoch:
            raise KeyboardInterrupt

    return stop


def resumed(clip: Clip, path: Path, scale: float) -> tuple[list[float], str, dict[str, Any]]:
    """The losses, the hash of the parameters and the scaler's state of a run that was stopped and went on."""
    with pytest.raises(KeyboardInterrupt):
        train(
            small_dear(clip),
            few(),
            SETTINGS,
            seed=1,
            checkpoint=path,
            fabric=scaled(scale),
            progress=stop_after(2),
        )
    method, fabric = small_dear(clip, seed=9), scaled(scale)
    history = train(method, few(), SETTINGS, seed=1, checkpoint=path, fabric=fabric)
    return losses(history), tensors_hash(method.state_dict()), fabric.strategy.precision.state_dict()


@pytest.mark.parametrize("scale", [2.0**10, 2.0**126])  # the second overflows, so that steps are skipped
def test_the_scaler_goes_on(scale: float, small_clip: Clip, tmp_path: Path) -> None:
    whole, fabric = small_dear(small_clip), scaled(scale)
    history = train(whole, few(), SETTINGS, seed=1, fabric=fabric)
    state = fabric.strategy.precision.state_dict()
    assert state["scale"] != scale
    assert resumed(small_clip, tmp_path / "c", scale) == (
        losses(history),
        tensors_hash(whole.state_dict()),
        state,
    )
