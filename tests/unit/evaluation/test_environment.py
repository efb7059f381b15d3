"""The peaks of a record are of the GPU that computed it. torch's functions are stand-ins."""

from typing import Any

import pytest
import torch

from dear.evaluation import workers
from dear.evaluation.environment import peak, start_counting


class StandIn:
    """torch.cuda with two GPUs, of which the second has used more."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reset: list[Any] = []
        self.current: str | None = None
        used = {None: 2**20, torch.device("cuda:0"): 2**20, torch.device("cuda:1"): 7 * 2**20}
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", self.reset.append)
        monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device=None: used[device])
        monkeypatch.setattr(torch.cuda, "set_device", lambda device: setattr(self, "current", device))


def test_the_peak_is_of_the_device_that_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda, second = StandIn(monkeypatch), torch.device("cuda:1")
    start_counting(second)
    start_counting(torch.device("cpu"))
    assert cuda.reset == [second]
    assert (peak(second)["gpu"], peak()["gpu"], peak(torch.device("cpu"))["gpu"]) == (7.0, 1.0, None)


@pytest.mark.parametrize(("device", "current"), [("cuda:1", "cuda:1"), ("cpu", None)])
def test_a_worker_computes_on_its_own_gpu(
    device: str, current: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    cuda = StandIn(monkeypatch)
    monkeypatch.setattr(workers, "use_threads", lambda _: None)
    workers.Worker(device, 1)
    assert cuda.current == current
