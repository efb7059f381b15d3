"""A full disk: one line and exit code 2 in every command that writes, and what was there stays.

The disk is full where no file may grow beyond a size, which needs no rights: the first byte fails at 0, later
ones at more.
"""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fuzz.kills.launcher import ROOT, Ended, Launcher
from tests.fuzz.kills.scenes import NAMES, WRITERS, Staged, all_that_is_read, contents, photos

pytest.importorskip("onnx", reason="the extra `export` is not installed")

SHORT, LONG = (0,), (0, 1, 700, 5_000, 40_000, 200_000)
"""Bytes that a file may have, without and with `--fuzz-long`."""


def one_line(ended: Ended) -> None:
    """It says what is wrong, once, after what it may have said of its progress."""
    assert ended.code == 2, ended.said
    assert "Traceback" not in ended.said, ended.said
    lines = [line for line in ended.said.splitlines() if line.startswith("dear: error: ")]
    assert len(lines) == 1, ended.said
    assert ended.said.splitlines()[-1] == lines[0]


@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_lost(name: str, launcher: Launcher, tmp_path: Path, fuzz_long: bool) -> None:
    staged = Staged(name, launcher, tmp_path)
    old = contents(staged.out) if staged.scene.keeps else {}
    want = staged.again()
    for most in LONG if fuzz_long else SHORT:
        staged.reset()
        ended = launcher.run(staged.words, staged.work, most=most)
        if most == 0 or ended.code:
            one_line(ended)
            assert not staged.scene.keeps or contents(staged.out) == old
        assert staged.again() == want


@pytest.mark.long
def test_every_command_that_writes(launcher: Launcher, tmp_path: Path, fuzz_long: bool) -> None:
    work, kept = tmp_path / "work", tmp_path / "kept"
    work.mkdir()
    photos(work / "photos")

    def make(words: str) -> None:
        done = launcher.run(words.split(), work)
        assert done.code == 0, done.said

    all_that_is_read(work, make)
    shutil.copytree(work, kept)
    for words in WRITERS.values():
        for most in LONG if fuzz_long else SHORT:
            shutil.rmtree(work)
            shutil.copytree(kept, work)
            ended = launcher.run(words.split(), work, most=most)
            if most == 0 or ended.code:
                one_line(ended)
            left = [path.name for path in (work / "out").rglob("*.part")]
            assert left == [], words
        make(words)


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_stdout_and_stderr_on_a_full_disk(options: list[str]) -> None:
    command = [sys.executable, "-m", "dear.cli.main", "tasks", *options]
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, cwd=ROOT)
        advice = "Free some space, or redirect the output elsewhere."
        said = f"cannot write to stdout: No space left on device. {advice}"
        assert (done.returncode, done.stderr) == (2, f"dear: error: {said}\n")
        assert subprocess.run(command, stdout=full, stderr=full, cwd=ROOT).returncode == 2
