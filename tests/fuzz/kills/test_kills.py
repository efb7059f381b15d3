"""kill -9 at any moment: the same command, given again, ends as if nothing had been.

A command is killed before a line of the modules that change files, or some time after its start.
"""

import random
from pathlib import Path

import pytest

from tests.fuzz.kills.launcher import Launcher, Moment
from tests.fuzz.kills.scenes import NAMES, Staged

SHORT, LONG, CLOCK = 2, 10, 2
"""Kills of each command: before a line, in `make fuzz` before more lines, and there by the clock as well."""


@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_lost(name: str, launcher: Launcher, tmp_path: Path, fuzz_long: bool) -> None:
    staged = Staged(name, launcher, tmp_path)
    whole = launcher.run(staged.words, staged.work, watch=True)
    assert whole.code == 0, whole.said
    want = staged.result()
    assert staged.old != want
    chance = random.Random(name)
    moments: list[Moment | float] = [*chance.sample(whole.passed, LONG if fuzz_long else SHORT)]
    moments += [chance.uniform(0, 1) for _ in range(CLOCK if fuzz_long else 0)]
    for moment in moments:
        staged.reset()
        at, after = (None, moment) if isinstance(moment, float) else (moment, None)
        ended = launcher.run(staged.words, staged.work, at=at, after=after)
        assert ended.code < 0 or after is not None, ended.said
        if staged.scene.keeps:
            assert staged.finished() in (staged.old, want), moment
        assert staged.again() == want, moment
