"""Progress without a terminal: a line for each finished part, and in between one every half minute with the
time left, from the second step on.
"""

import pytest

from dear.cli.progress import RunBars, StepProgress
from dear.progress import TrainingStep


class Clock:
    """A clock that is set by hand, in seconds."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_steps_of_a_computation(capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    with StepProgress(clock) as progress:
        for done in range(11):  # 20 s each: 160 s are left at 40 s, 100 s at 100 s
            progress("training", done, 10)
            clock.now += 20
    lines = capsys.readouterr().err.splitlines()
    assert lines == [
        "training: 2 of 10, 0:02:40 left", "training: 4 of 10, 0:02:00 left",
        "training: 6 of 10, 0:01:20 left", "training: 8 of 10, 0:00:40 left", "training: 10 of 10",
    ]  # fmt: skip


def test_runs(capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    with RunBars(2, clock=clock) as progress:
        for done in range(1, 11):
            clock.now += 60
            progress("a", TrainingStep(done, 10, 1 + (done - 1) // 5, 2, losses={"loss": 1.234}))
        progress("a", None)
        progress("b", None)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "[0/2] a epoch 1/2, loss 1.23"
    assert lines[1] == "[0/2] a epoch 1/2, loss 1.23, 0:18:00 left"  # 2 of 20 tenths in 2 minutes
    assert lines[9] == "[0/2] a epoch 2/2, loss 1.23, 0:10:00 left"
    assert lines[10:] == ["[1/2] a", "[2/2] b"]
