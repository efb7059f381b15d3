"""What TensorBoard reads of runs: every epoch as recorded, a teacher apart from its student."""

from pathlib import Path
from typing import Any

import pytest

from dear.backbone.clip import Clip
from dear.errors import OutputError
from dear.evaluation.launch import log_epochs
from dear.evaluation.resolve import MethodSetup
from dear.progress import silent
from tests.helpers.data import noise_dataset
from tests.helpers.runs import run_all

tensorboard = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
TRAINING = {"epochs": 2, "batch": 3, "lr": 1e-2}


def test_epochs_are_logged_as_recorded(small_clip: Clip, tmp_path: Path) -> None:
    setups, calls = [MethodSetup("coop"), MethodSetup("promptkd")], list[Any]()
    with log_epochs(tmp_path / "new" / "log", lambda *call: calls.append(call)) as progress:
        records = run_all(small_clip, [noise_dataset()], setups, shots=2, train=TRAINING, progress=progress)
    (file,) = (tmp_path / "new" / "log").glob("events*")
    events = tensorboard.EventAccumulator(str(file)).Reload()
    names = [next(run for run, _ in calls), next(run for run, _ in reversed(calls))]
    assert len({*names}) == 2
    for run, record in zip(names, records, strict=True):
        epochs = {record["method"]: record["train"]["epochs"]}
        if record["teacher"] is not None:
            epochs[record["teacher"]["method"]] = record["teacher"]["train"]["epochs"]
        for method, history in epochs.items():
            for name in history[0]:
                points = [(event.step, event.value) for event in events.Scalars(f"{run}/{method}/{name}")]
                assert points == [
                    (number, pytest.approx(epoch[name])) for number, epoch in enumerate(history, start=1)
                ]


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    for folder in (tmp_path / "file", tmp_path / "file" / "deeper", Path("/proc/none")):
        with pytest.raises(OutputError, match=r"cannot write to .*--log"), log_epochs(folder, silent):
            pass
    assert (tmp_path / "file").read_text() == "mine"
