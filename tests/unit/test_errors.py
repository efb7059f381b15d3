"""Messages: what is wrong, the nearest known name, what to do."""

import pickle
from pathlib import Path

from dear.errors import DataError, DearError, TrainingDiverged, UnknownNameError, first_line
from dear.reading.files import ReadingError
from dear.text import nearest_first, plural, printable


def test_unknown_name_lists_the_known_ones_nearest_first() -> None:
    error = UnknownNameError("task", "bages", ["tools", "badges", "pages-of-old"])
    assert error.known[0] == "badges"
    assert sorted(error.known) == ["badges", "pages-of-old", "tools"]
    expected = "unknown task 'bages'. Did you mean 'badges'? Known tasks: badges, pages-of-old, tools."
    assert str(error) == expected


def test_nearness_ignores_case_and_ties_are_alphabetical() -> None:
    assert nearest_first("VIT-b-16", ["RN50", "ViT-B-16", "ViT-B-32"])[:2] == ["ViT-B-16", "ViT-B-32"]
    assert nearest_first("zz", ["b", "a"]) == ["a", "b"]


def test_divergence_says_the_step_the_advice_and_the_checkpoint() -> None:
    error = TrainingDiverged(17, "Lower the learning rate.", Path("runs/last.ckpt"))
    assert "step 17" in str(error)
    assert "last.ckpt" in str(error)
    assert str(error).endswith("Lower the learning rate.")
    assert "checkpoint" not in str(TrainingDiverged(1, "Lower it."))


def test_errors_come_whole_from_other_processes() -> None:
    """Whatever their classes take: one that cannot be unpickled breaks a pool of processes."""
    errors: list[DearError] = [
        UnknownNameError("task", "x", ["y", "z"]), TrainingDiverged(7, "Lower it.", Path("a.pt")),
        ReadingError("a.json", "it is cut", missing=True), DataError("no image"),
    ]  # fmt: skip
    for error in errors:
        other = pickle.loads(pickle.dumps(error))
        assert (type(other), str(other), vars(other)) == (type(error), str(error), vars(error))


def test_a_message_steers_no_terminal_and_ends_no_line() -> None:
    name = "a\x1b[31m\x07\x9b\x7f\n\r\tb\u202e\u2066\u2028é"
    shown = r"a\x1b[31m\x07\x9b\x7f\n\x0d\x09b\u202e\u2066\u2028é"
    assert str(DataError(f"no {name}")) == f"no {shown}"
    assert str(UnknownNameError("task", "x", [name])).endswith(f"{shown}.")
    assert printable("one\n\ttwo\x1b", lines=True) == "one\n\ttwo\\x1b"


def test_numbers_of_things() -> None:
    pairs = ((1, "image"), (0, "image"), (2, "class"), (1, "batch"), (1234, "batch"))
    said = [plural(*pair) for pair in pairs]
    assert said == ["1 image", "0 images", "2 classes", "1 batch", "1,234 batches"]


def test_another_librarys_message_is_cut_between_words() -> None:
    words = " ".join(f"word{number}" for number in range(100))
    cut = first_line(OSError(f"{words}\nmore"))
    assert cut.endswith(" ...")
    assert len(cut) <= 204
    assert words.startswith(cut.removesuffix(" ...") + " ")
    assert first_line(OSError("x" * 300)) == "x" * 200 + " ..."
    for whole in ("x" * 200, "a short one"):
        assert first_line(OSError(f"{whole}\n")) == whole
    assert first_line(OSError()) == "OSError"
