"""A folder of runs that a stranger made: what lies in it is not followed, waited for or removed."""

import shutil
from contextlib import nullcontext
from pathlib import Path

import pytest

from dear.errors import OutputError
from dear.evaluation.launch import claims
from dear.evaluation.launch.claims import LOCK, claimed
from dear.evaluation.recipe import load_recipe
from tests.interrupts import interrupt_at_each_line
from tests.unit.evaluation.test_recipe import GOOD, written


def test_no_lock_of_others_is_removed(tmp_path: Path) -> None:
    one = load_recipe(written(tmp_path, GOOD), tmp_path)
    (tmp_path / "x").mkdir()
    for name in (".lock", LOCK):  # dear's own are empty
        (tmp_path / "x" / name).write_text("precious")
    with claimed(one), pytest.raises(OutputError, match="another process is writing"), claimed(one):
        pass
    assert [(tmp_path / "x" / name).read_text() for name in (".lock", LOCK)] == ["precious"] * 2
    (tmp_path / "x" / LOCK).write_text("")  # of a process that was killed
    with claimed(one):
        pass
    assert not (tmp_path / "x" / LOCK).exists()


def test_a_signal_leaves_no_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It comes once the file is there, and before it is locked: by another process, or by none."""
    one = load_recipe(written(tmp_path, GOOD), tmp_path)

    def interrupted(*_: object) -> bool:
        monkeypatch.setattr(claims, "_held", held)
        raise KeyboardInterrupt

    held = claims._held
    for other in (claimed(one), nullcontext()):
        with other:
            monkeypatch.setattr(claims, "_held", interrupted)
            with pytest.raises(KeyboardInterrupt), claimed(one):
                pass
            assert (tmp_path / "x" / LOCK).exists() == (not isinstance(other, nullcontext))


def test_a_signal_at_any_line_leaves_no_lock(tmp_path: Path) -> None:
    one = load_recipe(written(tmp_path, GOOD), tmp_path)

    def work() -> None:
        shutil.rmtree(tmp_path / "x", ignore_errors=True)
        with claimed(one):
            assert (tmp_path / "x" / LOCK).exists()

    def check() -> None:
        assert not (tmp_path / "x" / LOCK).exists()

    assert interrupt_at_each_line(claims, work, check) > 20
    check()
