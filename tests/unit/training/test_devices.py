"""Data parallel training: two processes give the numbers of one."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from dear.backbone.clip import Clip
from dear.backbone.precision import device_precision, half
from dear.errors import OutputError, SettingsError
from dear.training.devices import make_fabric, share
from dear.training.loop import train
from dear.training.settings import TrainSettings
from tests.unit.evaluation.children import TRAINING, free_port, method_of, server, train_as
from tests.unit.training.world import few, small_dear


@pytest.mark.parametrize(("items", "world"), [(16, 2), (7, 2), (7, 3), (1, 2), (2, 5), (5, 5)])
def test_the_shares_of_a_batch(items: int, world: int) -> None:
    shares = [share(items, rank, world) for rank in range(world)]
    own = [list(range(items))[part] for part, weight in shares if weight]
    assert [item for part in own for item in part] == list(range(items))
    assert all(len(range(items)[part]) >= 1 for part, _ in shares)  # nobody has nothing to compute
    losses = torch.arange(items, dtype=torch.float64).square()
    mean = sum(weight * losses[part].mean() for part, weight in shares) / world
    assert float(mean) == pytest.approx(float(losses.mean()))


@pytest.mark.parametrize("name", ["dear", pytest.param("prograd", marks=pytest.mark.long)])
def test_two_processes_give_the_loss_curve_of_one(name: str) -> None:
    # Seven images in batches of three: the last batch has one, so one process has none of its own.
    context = server()
    told, port = context.Queue(), free_port()
    children = [context.Process(target=train_as, args=(name, rank, 2, port, told)) for rank in range(2)]
    for child in children:
        child.start()
    found = sorted((told.get(timeout=300) for _ in children), key=lambda each: each[0])
    for child in children:
        child.join()
    method = method_of(name)
    alone = train(method, few(), TRAINING, seed=1)
    assert alone[-1]["loss"] < alone[0]["loss"]
    for _, history, state in found:
        for one, other in zip(history, alone, strict=True):
            for part in {*other} - {"epoch", "seconds"}:
                assert one[part] == pytest.approx(other[part], abs=1e-6)
        for key, value in method.state_dict().items():
            torch.testing.assert_close(torch.tensor(state[key]), value, atol=1e-5, rtol=1e-4)


def test_half_precision_of_a_gpu_is_not_replaced_in_silence() -> None:
    """Fabric would compute in bfloat16, and the record say float16."""
    with pytest.raises(SettingsError, match="precision 16-mixed needs a GPU"):
        make_fabric(torch.device("cpu"), "16-mixed")
    assert device_precision("auto", torch.device("cpu")) == "32-true"
    assert device_precision("auto", torch.device("cuda")) == "bf16-mixed"
    assert device_precision("16-mixed", torch.device("cuda")) == "16-mixed"


def test_weights_in_float16_go_with_their_precision(small_clip: Clip) -> None:
    settings = TrainSettings(epochs=1, batch=4, optimizer="sgd", precision="16-true")
    with pytest.raises(SettingsError, match=r"precision is 16-true, but .* in torch.float32"):
        train(small_dear(small_clip), few(), settings, seed=1)
    rough = half(small_clip)
    with pytest.raises(SettingsError, match=r"precision is auto, but .* in torch.float16"):
        train(small_dear(rough), few(), replace(settings, precision="auto"), seed=1)
    assert train(small_dear(rough), few(), settings, seed=1)


def test_no_buffer_is_sent_between_processes() -> None:
    """With the masks of all layers that would be megabytes in every step."""
    strategy: Any = make_fabric(torch.device("cpu"), "32-true", devices=2).strategy
    options = strategy._ddp_kwargs
    assert (options["broadcast_buffers"], options["find_unused_parameters"]) == (False, True)


def test_a_log_that_cannot_be_written(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    (tmp_path / "file").write_text("mine")
    for folder in (tmp_path / "file", tmp_path / "file" / "deeper", Path("/proc/none")):
        with pytest.raises(OutputError, match=r"cannot write to .*--log"):
            make_fabric(torch.device("cpu"), "auto", log=folder)
    assert (tmp_path / "file").read_text() == "mine"
    make_fabric(torch.device("cpu"), "auto", log=tmp_path / "new" / "er").log("loss", 1.0)
    assert [*(tmp_path / "new" / "er").rglob("events*")]
