"""A folder of runs that a stranger made: what lies in it is not followed, waited for or removed."""

import os
import shutil
from contextlib import nullcontext
from pathlib import Path

import pytest

from dear.errors import OutputError
from dear.evaluation.launch import claims
from dear.evaluation.launch.claims import LOCK, MARK, check_folders, claimed
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


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs links and pipes")
@pytest.mark.parametrize("name", [LOCK, MARK, "unfinished"])
@pytest.mark.parametrize("kind", ["link", "dangling", "device", "pipe"])
def test_what_a_stranger_put_in_the_folder(name: str, kind: str, tmp_path: Path) -> None:
    """A pipe would be waited for, /dev/zero read to the end of memory, a link written through."""
    one = load_recipe(written(tmp_path, GOOD), tmp_path)
    (tmp_path / "x").mkdir()
    (tmp_path / "mine").mkdir() if name == "unfinished" else (tmp_path / "mine").write_text("precious")
    hostile = tmp_path / "x" / name
    if kind == "pipe":
        os.mkfifo(hostile)
    else:
        hostile.symlink_to(
            {"link": tmp_path / "mine", "dangling": tmp_path / "new", "device": "/dev/zero"}[kind]
        )
    if (name, kind) == ("unfinished", "pipe"):
        return  # an error when a checkpoint is written
    refused = pytest.raises(OutputError, match=r"is a link|a pipe")
    if name == LOCK:
        with refused as error, claimed(one):
            pass
    else:
        with refused as error:
            check_folders([one])
    assert len(str(error.value)) < 500
    assert "precious" not in str(error.value)
    assert not (tmp_path / "new").exists()
    assert name == "unfinished" or (tmp_path / "mine").read_text() == "precious"
