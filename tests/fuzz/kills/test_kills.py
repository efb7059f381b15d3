"""kill -9 at any moment: the same command, given again, ends as if nothing had been.

A command is killed before a line of the modules that change files, or some time after its start.
"""

import random
import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.fuzz.kills.launcher import Launcher, Moment
from tests.fuzz.kills.scenes import BRIEF, SCENES, copied, stage

pytest.importorskip("faiss", reason="the extra `retrieval` is not installed")

SHORT, LONG, CLOCK = 2, 10, 2
"""Kills of each command: before a line in `make test`, in `make fuzz`, and there by the clock as well."""


@pytest.mark.slow
@pytest.mark.parametrize("name", SCENES)
def test_nothing_is_lost(name: str, launcher: Launcher, tmp_path: Path, fuzz_long: bool) -> None:
    if not fuzz_long and name not in BRIEF:
        pytest.skip("in make fuzz only")
    scene, work, kept = SCENES[name], tmp_path / "work", tmp_path / "kept"
    words, out = scene.words.split(), work / "out"

    def make(words: str, folder: Path) -> None:
        done = launcher.run(words.split(), folder)
        assert done.code == 0, done.said

    def again() -> Any:
        """What the command leaves in the end; it must end well."""
        make(scene.words, work)
        return scene.result(out)

    def fresh() -> None:
        shutil.rmtree(work)
        copied(kept, work)

    copied(stage(work, scene, make), kept)
    old = scene.result(out) if scene.keeps else None
    whole = launcher.run(words, work, watch=True)
    assert whole.code == 0, whole.said
    want = scene.result(out)
    assert old != want
    chance = random.Random(name)
    moments: list[Moment | float] = [*chance.sample(whole.passed, LONG if fuzz_long else SHORT)]
    moments += [chance.uniform(0, 1) for _ in range(CLOCK if fuzz_long else 0)]
    for moment in moments:
        fresh()
        at, after = (None, moment) if isinstance(moment, float) else (moment, None)
        ended = launcher.run(words, work, at=at, after=after)
        assert ended.code < 0 or after is not None, ended.said
        if scene.keeps:
            assert scene.result(out) in (old, want), moment
        assert again() == want, moment
