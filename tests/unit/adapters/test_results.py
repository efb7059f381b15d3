"""A file of predictions: its columns, whole or absent, one batch at a time."""

import csv
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dear.adapters.facts import CROSS_VALIDATION, NameCost, TrainingFacts, TriedMethod
from dear.adapters.results import (
    ClassScore,
    Prediction,
    Suggestion,
    Unreadable,
    is_sum,
    keep_results,
    name_evidence,
    write_predictions,
    write_suggestions,
)
from dear.adapters.wording import describe_fit, describe_names, describe_test, verdict
from dear.data.sources.answers import read_answers
from dear.errors import DataError, OutputError
from tests.conftest import MakeClip
from tests.helpers.bundles import bundle_scores, fitted
from tests.helpers.data import CLASSES
from tests.unit.data.photos import picture

DOG = ClassScore("dog", 0.75, 3.0, {"class": 3.0})
CAT = ClassScore("=cat", 0.25, 1.5, {"class": 1.5})
BAD = Unreadable("bad.jpg", "cannot read bad.jpg")
FOUND = [BAD, Prediction("a, b.png", (DOG, CAT)), Prediction("c\udcff.png", (CAT, DOG), none_of_these=True)]


def test_one_row_an_image(tmp_path: Path) -> None:
    written = write_predictions(tmp_path / "p.csv", FOUND)
    assert (written.images, written.unreadable, written.partly) == (2, [BAD], True)
    text = (tmp_path / "p.csv").read_text("utf-8-sig", errors="surrogateescape")
    rows = [*csv.reader(text.splitlines())]
    names = ["file", "class", "probability", "class_2", "probability_2"]
    assert rows[0] == [*names, "none_of_these", "predicted", "checked"]
    # No spreadsheet takes it for a formula.
    assert rows[1] == ["a, b.png", "dog", "0.75", "'=cat", "0.25", "", "dog", ""]
    assert rows[2] == ["c\udcff.png", "'=cat", "0.25", "dog", "0.75", "yes", "'=cat", ""]
    assert len(rows) == 3


def test_a_table_of_names_like_formulas_is_read_again(tmp_path: Path) -> None:
    """It was refused, as an apostrophe stood before the paths, and another before the names of classes."""
    files = [picture(tmp_path / name) for name in ("=a.png", "-b.png", "@c.png", "d.png")]
    best = [CAT, DOG, CAT, DOG]
    write_predictions(
        tmp_path / "p.csv",
        [Prediction(str(file), (label,)) for file, label in zip(files, best, strict=True)],
    )
    assert read_answers(tmp_path / "p.csv") == ([], 4)
    lines = (tmp_path / "p.csv").read_text("utf-8-sig").splitlines()
    (tmp_path / "p.csv").write_text("\n".join([lines[0], *(f"{line}yes" for line in lines[1:])]))
    answers, unanswered = read_answers(tmp_path / "p.csv")
    assert unanswered == 0
    assert [(answer.file, answer.label) for answer in answers] == [
        (file, label.name) for file, label in zip(files, best, strict=True)
    ]


def test_corrected_labels_are_not_overwritten(tmp_path: Path) -> None:
    writers: dict[str, Callable[[Path], Any]] = {
        "p": lambda out: write_predictions(out, FOUND[:2]),
        "s": lambda out: write_suggestions(out, [Suggestion("a.png", "dog", 0.1)]),
    }
    for name, write in writers.items():
        table = tmp_path / f"{name}.csv"
        write(table)
        write(table)  # nothing is lost
        rows = [*csv.DictReader(table.read_text("utf-8-sig").splitlines())]
        rows[0]["checked" if name == "p" else "label"] = "yes"
        with table.open("w", newline="") as file:
            (writer := csv.DictWriter(file, [*rows[0]])).writeheader()
            writer.writerows(rows)
        before = table.read_bytes()
        with pytest.raises(OutputError, match=rf"{name}\.csv"):
            write(table)
        assert table.read_bytes() == before


def test_a_table_elsewhere_names_images_by_their_whole_paths(tmp_path: Path) -> None:
    file, table = picture(tmp_path / "photos" / "a.png"), tmp_path / "out" / "p.csv"
    write_predictions(table, [Prediction(str(file), (DOG,))])
    table.write_text(table.read_text("utf-8-sig").rstrip() + "yes\n")
    [answer], _ = read_answers(table)
    assert answer.file == file


def test_what_is_interrupted_goes_on_where_it_was(tmp_path: Path) -> None:
    """A table is whole or not there; another key, as of other options, starts anew."""
    (tmp_path / "p.csv").write_text("before")
    calls = list[tuple[str, int]]()

    def write(key: str, stop: int) -> None:
        def predict(done: int) -> Iterator[Prediction | Unreadable]:
            calls.append((key, done))
            for number in range(done, 30):
                if number == stop:
                    raise KeyboardInterrupt
                yield BAD if number == 3 else Prediction(f"{number}\udcff.png", (DOG, CAT), number == 4)

        written = write_predictions(tmp_path / "p.csv", keep_results(tmp_path / "p.csv", key, predict))
        assert (written.images, written.unreadable) == (29, [BAD])

    for key, stop in (("a", 10), ("b", 20)):
        with pytest.raises(KeyboardInterrupt):
            write(key, stop)
        assert (tmp_path / "p.csv").read_text() == "before"
    with (tmp_path / "p.csv.unfinished").open("ab") as file:
        file.write(b'{"image": "20')  # what a killed process wrote of a line
    with pytest.raises(KeyboardInterrupt):
        write("b", 25)
    write("b", 30)
    assert calls == [("a", 0), ("b", 0), ("b", 20), ("b", 25)]
    assert [path.name for path in tmp_path.iterdir()] == ["p.csv"]
    interrupted = (tmp_path / "p.csv").read_bytes()
    write("b", 30)
    assert (tmp_path / "p.csv").read_bytes() == interrupted


def test_images_none_of_which_can_be_read(tmp_path: Path) -> None:
    with pytest.raises(DataError):
        write_predictions(tmp_path / "p.csv", [BAD])
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize(
    ("gained", "lost", "right", "says"),
    [
        (12, 3, 63, "Better than zero-shot: +12.9 points (95%: +2.3 to +24.3)."),
        (3, 12, 40, "Worse than zero-shot: -12.9 points (95%: -24.3 to -2.3)."),
        (2, 1, 40, "Not clearly better than zero-shot: +1.4 points"),
    ],
)
def test_the_verdict_says_what_scores_mean(gained: int, lost: int, right: int, says: str) -> None:
    scores = bundle_scores(
        70, accuracy=right / 70, zero_shot=(right - gained + lost) / 70, chance=0.1, gained=gained, lost=lost,
        groups=70, confidence=0.2, confusions=(("dog", "cat", 3),),
    )  # fmt: skip
    lines = verdict(scores)
    (position,) = (number for number, line in enumerate(lines) if line.startswith(says))
    assert position == (1 if gained == 12 else 0)  # a bad verdict comes first
    assert lines[-2] == "Most confused: dog as cat (3)."
    assert f"too low: mean probability 20.0%, {right / 70:.1%} right" in lines[-1]
    assert any(f"{right} of 70 right, {right / 70:.1%} (95%: " in line for line in lines)
    at_chance = verdict(replace(scores, accuracy=0.1, gained=0, lost=0))
    assert at_chance[0] == "Not clearly better than chance."
    # 7 of 70 are right, from 4.9 to 19.2% at 95%: a mean of 15% is nothing to be said of
    usual = verdict(replace(scores, accuracy=0.1, gained=0, lost=0, confidence=0.15))
    assert not any("zero-shot:" in line or "Probabilities" in line for line in usual)


def test_a_bundle_shows_what_was_measured_in_a_line(make_small_clip: MakeClip) -> None:
    """3 of 7 by hand."""
    bundle, _ = fitted("zero-shot", make_small_clip())
    rest: Any = {"calibration_error": 0.3, "confusions": (("ant", "bee", 2),)}
    scores = bundle_scores(7, accuracy=3 / 7, zero_shot=1 / 7, gained=2, **rest)
    measured = replace(bundle, scores=scores)
    assert "3 of 7 right, 42.9%" in measured.verdict
    assert "3 of 7 right, 42.9%" in repr(measured)
    assert len(repr(measured)) < 400
    untested = replace(bundle, scores=None)
    assert repr(untested).endswith(f"{len(CLASSES)} classes. Not measured.>")
    assert "Not tested" in untested.verdict


def test_a_spared_label_is_not_said_to_look_wrong() -> None:
    """The review, which has more to judge by, may find none that does."""
    facts = TrainingFacts(calibration_images=152, doubted_labels=1)
    [line] = describe_fit("ensemble", facts)
    assert "152 of 153" in line
    assert "wrong" not in line


def test_candidates_are_told_from_what_is_promised() -> None:
    tried = (TriedMethod("ensemble", 0.915, 0.9, 0.93, 1.0), TriedMethod("zero-shot", 0.5, 0.4, 0.6, 1.0))
    lines = describe_fit("ensemble", TrainingFacts(chosen="the best", candidates=tried))
    assert "91.5%" in lines[1]
    assert "no promise" in lines[-1]


@pytest.mark.parametrize("count", [1, 2])
def test_a_choice_is_cross_validated_where_there_was_one(count: int) -> None:
    tried = (TriedMethod("ensemble", 0.9), TriedMethod("zero-shot", 0.5))[:count]
    facts = TrainingFacts(chosen="the best", candidates=tried)
    title = describe_test(bundle_scores(40, split=CROSS_VALIDATION), facts)[0]
    assert ("choice" in title) == (count > 1)


def test_few_classes_say_little_of_a_new_name() -> None:
    cost = NameCost(threshold=0.1, taken=0.001, found=0.9, images=50, most=0.032)
    lines = [
        describe_names(cost, [*map(str, range(classes)), "lorry"], [*map(str, range(classes))])
        for classes in (6, 7)
    ]
    assert ["may take several percent" in line for [line] in lines] == [True, False]
    assert "0.1% of the others', up to 3.2% by one name" in lines[1][0]


def test_evidence_is_shown_if_its_parts_sum_to_the_scores() -> None:
    parts = np.array([[[1.0, 2.0], [3.0, -1.0]]])  # of an image by feature and class
    for kind in (np.asarray, torch.tensor):
        assert is_sum(kind([[4.0, 1.0]]), kind(parts.sum(axis=1)))
        assert not is_sum(kind([[4.0, 1.1]]), kind(parts.sum(axis=1)))
    named = name_evidence([1.0, 2.0, 4.0], ["class", "color", "size"], ["color", "size"])
    assert named == {"class": 1.0, "rest": 6.0}
    assert name_evidence([], ["class"], []) == {}
