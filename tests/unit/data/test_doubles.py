"""Images of one content, a single class, uneven classes: what a check warns of."""

import shlex
import shutil
from pathlib import Path

import pytest

from dear.data.check import check_dataset
from dear.data.settings import DataSettings
from tests.unit.data.photos import class_folders


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two classes, three images to train on and two to test on of each; all have levels of their own."""
    for part, first, count in (("train", 0, 3), ("test", 3, 2)):
        for label, name in enumerate(("ant", "bee")):
            class_folders(tmp_path / "all", {name: 10 * label + first + count})
            for number in range(count):
                place = tmp_path / "mine" / part / name / f"{number}.png"
                place.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(tmp_path / "all" / name / f"{10 * label + first + number}.png", place)
    return tmp_path / "mine"


def test_nothing_to_warn_of(folder: Path, settings: DataSettings) -> None:
    found = check_dataset(str(folder), settings)
    assert (found.ok, found.partly, found.warnings, found.duplicates) == (True, False, [], [])


def test_names_that_clip_does_not_read_to_their_end(folder: Path, settings: DataSettings) -> None:
    """CLIP reads 75 tokens: of "a photo of a", then 71 of the 80 words."""
    words = " ".join(["ab"] * 80)
    for part in ("train", "test"):
        (folder / part / "ant").rename(folder / part / f"{words} c")
    [warning] = check_dataset(str(folder), settings).warnings
    assert warning.startswith("class names cut, since the text tower reads 75 tokens: 'ab ab")
    for part in ("train", "test"):
        (folder / part / "bee").rename(folder / part / f"{words} d")
    [refusal] = check_dataset(str(folder), settings).warnings
    assert refusal.startswith("the text tower reads 75 tokens of a prompt, which are the same for 'ab ab")


def test_copies_are_told_by_where_they_are(folder: Path, settings: DataSettings) -> None:
    train, test = folder / "train", folder / "test"
    shutil.copy(train / "ant/0.png", train / "ant/copy.png")  # inside a class
    shutil.copy(train / "bee/0.png", train / "ant/bee.png")  # in another class
    shutil.copy(train / "bee/1.png", test / "bee/copy.png")  # also tested on
    found = check_dataset(str(folder), settings)
    assert found.duplicates == [
        ["test/bee/copy.png", "train/bee/1.png"],
        ["train/ant/0.png", "train/ant/copy.png"],
        ["train/ant/bee.png", "train/bee/0.png"],
    ]
    wanted = [
        ("several splits", "test/bee/copy.png = train/bee/1.png"),
        ("one class", "train/ant/0.png = train/ant/copy.png"),
        ("the split leaks", "test/bee/copy.png"),
    ]
    for told, words in zip(found.warnings, wanted, strict=True):
        assert all(word in told for word in words)
    [fault] = found.faults
    assert "train/ant/bee.png ('ant') = train/bee/0.png ('bee')" in fault
    assert (found.ok, found.partly) == (False, True)
    (train / "ant/bee.png").unlink()
    assert not check_dataset(str(folder), settings).partly
    assert check_dataset(str(folder), settings, decode=False).duplicates is None


def test_uneven_classes(tmp_path: Path, settings: DataSettings) -> None:
    """70% of 4 and of 15 are 3 and 10 or 11 images to train on: more than three times as many."""
    folder = class_folders(tmp_path / "mine", {"ant": 4, "bee": 15})
    (told,) = check_dataset(str(folder), settings).warnings
    assert told.startswith("train: the classes are uneven, from 3 (ant) to 10 images (bee)")


def test_a_command_that_is_suggested_runs_nothing_else(tmp_path: Path, settings: DataSettings) -> None:
    """The names of folders may be a stranger's, and a user pastes it."""
    for domain in ("$(touch here)", "photo"):
        class_folders(tmp_path / "a b" / domain, {"ant": 2, "bee": 2})
    (note,) = (note for note in check_dataset(str(tmp_path / "a b"), settings).notes if "domain" in note)
    words = shlex.split(note.partition("the others: ")[2])
    assert words[words.index("--data") + 1] == str(tmp_path / "a b")
    assert words[words.index("--source") + 1] in ("$(touch here)", "photo")
    assert not {"$(touch", "here)"} & {*words}
