"""The number of threads: by the width of the model where that is asked for, left alone where it is not."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from dear.backbone import device


@pytest.fixture(autouse=True)
def of_this_process(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A process that torch gives seven threads; its own number is restored afterwards."""
    monkeypatch.delenv(device.VARIABLE, raising=False)
    before = torch.get_num_threads()
    torch.set_num_threads(7)
    device._torch_threads.cache_clear()
    yield
    torch.set_num_threads(before)
    device._torch_threads.cache_clear()


def clip(image: int, text: int) -> Any:
    return SimpleNamespace(image=SimpleNamespace(width=image), text=SimpleNamespace(width=text))


SMALL, WIDE = clip(128, 128), clip(768, 512)


@pytest.mark.parametrize(
    ("asked", "clips", "wanted"),
    [
        (None, [SMALL], 7),
        ("auto", [SMALL], 1),
        ("auto", [WIDE], 7),
        ("auto", [clip(128, 512)], 7),
        ("auto", [SMALL, WIDE], 7),  # a small model with a wide teacher
        ("auto:3", [WIDE], 3),
        ("auto:3", [SMALL], 1),
        ("2", [SMALL], 2),
        ("2", [WIDE], 2),
    ],
)
def test_the_widest_tower_decides(
    asked: str | None, clips: list[Any], wanted: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if asked is not None:
        monkeypatch.setenv(device.VARIABLE, asked)
    for _ in range(2):  # the models of a run before do not matter
        device.set_threads(*clips)
        assert torch.get_num_threads() == wanted
        device.set_threads(SMALL)


@pytest.mark.parametrize(
    ("asked", "jobs", "each"), [(None, 2, 3), ("auto", 2, 3), ("auto", 9, 1), ("auto", 1, 7), ("5", 2, 5)]
)
def test_processes_share_the_cores(
    asked: str | None, jobs: int, each: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if asked is not None:
        monkeypatch.setenv(device.VARIABLE, asked)
    device.set_threads(SMALL)  # the process that starts them has looked at the model
    assert device.threads_per_job(jobs) == each
    device.use_threads(each)
    assert torch.get_num_threads() == each
    device.set_threads(WIDE)
    assert torch.get_num_threads() == each
