"""Processes of tests: forked from a server that has imported everything and trained nothing, so they start
fast (autograd does not survive a fork of a process that has used it).
"""

import multiprocessing
import os
import signal
import sys
import threading
import time
from itertools import product
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

import dear.adapters.fit
import dear.report.report_page  # noqa: F401 (for tests/e2e/test_kills.py: a process has one such server)
from dear.evaluation import runs, workers
from dear.evaluation.experiment import Experiment, Machines
from dear.evaluation.launch import launch
from dear.evaluation.protocols.base_to_novel import BaseToNovel
from dear.evaluation.resolve import MethodSetup, ResolvedRun
from dear.methods.registry import register
from dear.progress import TrainingStep
from dear.training.settings import TrainSettings
from tests.conftest import small_clip_of
from tests.helpers.data import noise_dataset
from tests.helpers.methods import role_table
from tests.helpers.runs import run_all

TRAINING = TrainSettings(epochs=3, batch=3, lr=1e-2, optimizer="sgd")
DEAR = MethodSetup("dear", {"first": 8})


def server(imported: str = __name__) -> ForkServerContext:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([imported])
    return context


def write_noise(folder: Path) -> None:
    """Four classes of noise, two images each to train on and two to test on."""
    pixels = np.random.default_rng(7)
    for split, label, number in product(("train", "test"), "abcd", range(2)):
        (folder / split / label).mkdir(parents=True, exist_ok=True)
        picture = Image.fromarray(pixels.integers(0, 256, (40, 48, 3), dtype=np.uint8))
        picture.save(folder / split / label / f"{number}.png")


def experiment(out: Path, **changes: Any) -> Experiment:
    """Zero-shot and DeAR on a folder of noise beside ``out``."""
    photos = out.parent / "photos"
    if not photos.exists():
        write_noise(photos)
    options: dict[str, Any] = {
        "protocol": BaseToNovel(),
        "data": (str(photos),),
        "methods": (MethodSetup("zero-shot"), MethodSetup("dear", {"first": 12}, "all-mixed")),
        "shots": (1,),
        "train": {"epochs": 1, "warmup_epochs": 0},
        "model": "tiny",
    }
    return Experiment(out=out, **options | changes)


def run_into(out: Path) -> list[dict[str, Any]]:
    """A run with records and checkpoints in ``out``."""
    torch.set_num_threads(1)
    clip = small_clip_of()
    options: dict[str, Any] = {"train": vars(TRAINING), "out": out}
    return run_all(clip, [noise_dataset()], [DEAR], shots=3, roles=role_table(clip), **options)


def run_until(out: Path, last: int | None, told: Any) -> None:
    """The same run, killed before its so-manieth opening, renaming or removal of a file in ``out``; how many
    a whole run has is told.
    """
    passed = 0

    def count(event: str, arguments: Any) -> None:
        nonlocal passed
        if event in ("open", "os.rename", "os.remove") and str(arguments[0]).startswith(f"{out}{os.sep}"):
            passed += 1
            if passed == last:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(count)
    run_into(out)
    told.put(passed)


def launch_alone(experiment: Experiment, told: Any, stops: bool) -> None:
    """Launch in this process, which may stop after its first epoch; the name of each run made is told."""
    torch.set_num_threads(1)
    run_record = runs.run_record

    def tell_made(run: ResolvedRun, *made: Any) -> dict[str, Any]:
        told.put(run.name)
        return run_record(run, *made)

    runs.run_record = tell_made

    def stop(_name: str, step: TrainingStep | None) -> None:
        if stops and step is not None and step.ends_epoch:
            signal.pause()

    launch([experiment], Machines("cpu"), stop)


def launch_and_tell(experiment: Experiment, begun: Path, told: Any) -> None:
    """Launch on two processes, whose ids are told once a run is under way."""
    context = server("dear.evaluation.workers")
    workers.multiprocessing.get_context = lambda _: context  # type: ignore[assignment]

    def tell() -> None:
        while not begun.exists():
            time.sleep(0.02)
        told.send([child.pid for child in multiprocessing.active_children()])

    threading.Thread(target=tell, daemon=True).start()
    register(experiment.methods[0].method)
    launch([experiment], Machines("cpu", jobs=2))
