"""A folder of runs: one owner, one writer at a time."""

import multiprocessing
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from dear.errors import OutputError
from dear.evaluation.launch.claims import LOCK, MARK, check_folders, claimed, require_distinct_folders
from dear.evaluation.recipe import load_recipe
from tests.unit.evaluation.test_recipe import GOOD, written


def test_two_recipes_writing_to_one_place(tmp_path: Path) -> None:
    one, two = (load_recipe(written(tmp_path, GOOD, name), tmp_path) for name in ("a.yaml", "b.yaml"))
    with pytest.raises(OutputError, match="a and b both write to"):
        require_distinct_folders([one, two])
    with claimed(one), pytest.raises(OutputError, match="another process is writing"), claimed(one):
        pass
    with claimed(one):  # the same recipe goes on
        assert (tmp_path / "x" / MARK).read_text() == "a\n"
    for refused in (lambda: check_folders([two]), lambda: claimed(two).__enter__()):
        with pytest.raises(OutputError, match="holds the runs of the recipe 'a', not of b"):
            refused()
    assert not (tmp_path / "x" / LOCK).exists()


def hold(folder: Path, ready: Any) -> None:
    with claimed(load_recipe(folder / "a.yaml", folder)):
        ready.send(True)
        signal.pause()


def test_a_lock_ends_with_its_process(tmp_path: Path) -> None:
    one = load_recipe(written(tmp_path, GOOD, "a.yaml"), tmp_path)
    listener, ready = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.get_context("fork").Process(target=hold, args=(tmp_path, ready))
    process.start()
    assert listener.recv()
    with pytest.raises(OutputError, match="another process is writing"), claimed(one):
        pass
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    with claimed(one):
        pass
    assert not (tmp_path / "x" / LOCK).exists()
