"""SIGTERM to a command that works: one line, exit code 143, no lock or part left, and it goes on as after any
end."""

import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.fuzz.kills.launcher import Launcher
from tests.fuzz.kills.scenes import NAMES, RUN, Staged, photos

SHORT, LONG = 1, 10
"""Ends of each command, without and with `--fuzz-long`."""


@pytest.mark.parametrize("name", NAMES)
def test_at_any_moment(name: str, launcher: Launcher, tmp_path: Path, fuzz_long: bool) -> None:
    staged = Staged(name, launcher, tmp_path)
    whole = launcher.run(staged.words, staged.work, watch=True)
    want = staged.result()
    for moment in random.Random(name).sample(whole.passed, LONG if fuzz_long else SHORT):
        staged.reset()
        ended = launcher.run(staged.words, staged.work, at=moment, signal=signal.SIGTERM)
        assert ended.code == 143, (moment, ended.said)
        assert ended.said.splitlines()[-1].startswith("dear: terminated"), ended.said
        assert "Traceback" not in ended.said, ended.said
        left = [path.name for path in staged.work.rglob("*") if path.name.endswith((".part", ".lock"))]
        assert left == [], moment
        if staged.scene.keeps:
            assert staged.finished() in (staged.old, want), moment
        assert staged.again() == want, moment


@pytest.mark.long
@pytest.mark.parametrize("jobs", [1, 2])
def test_a_process_of_its_own_with_those_that_it_started(jobs: int, tmp_path: Path) -> None:
    photos(tmp_path / "photos")
    command = [sys.executable, "-m", "dear.cli.main", *RUN.split(), "--jobs", str(jobs)]
    command += ["--train.epochs", "3000", "--methods", "coop,dear", "--train.warmup-epochs", "1"]
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as process:
        try:
            until = time.monotonic() + 300
            while not [*tmp_path.glob("out/unfinished/*.pt")] and time.monotonic() < until:
                assert process.poll() is None
                time.sleep(0.1)
            process.send_signal(signal.SIGTERM)
            _, said = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 143
    assert said.splitlines()[-1] == "dear: terminated: give the same command to continue"
    assert not (tmp_path / "out" / ".dear.lock").exists()
