"""What runs take for what: the answers of records, by hand, and how the report shows them."""

import csv
import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from dear.data.world.tasks import load_task
from dear.errors import DataError
from dear.evaluation.answers import content_hash
from dear.report.answers import answered
from dear.report.answers_page import answers_shown
from dear.report.folder import write_folder_report
from dear.report.html import report_html
from tests.unit.report.samples import record

CLASSES = ["<i>fish</i>", "car", "tree"]


def part(
    confusions: list[list[int]], right: list[int], where: str = "base", **changes: Any
) -> dict[str, Any]:
    """Answers on five images of the first class and three of each other."""
    answered = [
        right[at] + sum(images for _, answer, images in confusions if answer == at) for at in range(3)
    ]
    return {
        "part": [where],
        "classes": CLASSES,
        "images": [5, 3, 3],
        "right": right,
        "answered": answered,
        "confusions": confusions,
        "left_out": 0,
        "identity": "gone",
        "mistakes": [],
    } | changes


FIRST = part([[0, 1, 2], [1, 2, 1]], [3, 2, 3])
SECOND = part([[1, 2, 3], [0, 1, 1]], [4, 0, 3])


def wrong(index: int, confidence: float, **changes: Any) -> dict[str, Any]:
    return {"index": index, "label": 0, "answer": 1, "confidence": confidence, "probability": 0.01} | changes


def put(folder: Path, *records: dict[str, Any]) -> Path:
    folder.mkdir()
    for at, one in enumerate(records):
        (folder / f"{at}.json").write_text(json.dumps(one))
    return folder


def rows(path: Path) -> list[list[str]]:
    with path.open(newline="") as file:
        return [*csv.reader(file)]


def test_seeds_are_summed_by_hand() -> None:
    runs = [
        record("tools", "coop", 0.7, 0.5, seed=1, answers=[FIRST]),
        record("tools", "coop", 0.6, 0.5, seed=2, answers=[SECOND]),
    ]
    (one,) = answered(runs)
    assert (one.data, one.part, one.method, one.seeds) == ("tools", "base classes", "coop", 2)
    assert one.matrix().tolist() == [[7, 3, 0], [0, 2, 4], [0, 0, 6]]
    assert one.pairs() == [("car", "tree", 4, 4 / 6), (CLASSES[0], "car", 3, 0.3)]
    assert one.accuracy == 15 / 22
    fish, car, tree = one.scores
    assert (fish.accuracy, fish.precision, fish.f1) == (0.7, 1.0, pytest.approx(14 / 17))
    assert (car.accuracy, car.precision, car.f1) == (2 / 6, 2 / 5, pytest.approx(4 / 11))
    assert (tree.accuracy, tree.precision, tree.f1) == (1.0, 0.6, 0.75)


def test_an_image_that_several_seeds_mistake_is_shown_once() -> None:
    said = [[wrong(4, 0.6), wrong(2, 0.5)], [wrong(4, 0.9)]]
    runs = [
        record("tools", "coop", 0.7, 0.5, seed=seed, answers=[FIRST | {"mistakes": some}])
        for seed, some in enumerate(said, start=1)
    ]
    (one,) = answered(runs)
    assert [(w.title, w.facts["confidence"]) for w in one.wrong] == [("image 5", 0.9), ("image 3", 0.5)]


def test_runs_on_other_images_are_not_summed() -> None:
    runs = [record("tools", "coop", 0.7, 0.5, answers=[FIRST])]
    runs += [record("tools", "coop", 0.7, 0.5, seed=2, answers=[FIRST | {"images": [6, 3, 3]}])]
    with pytest.raises(DataError, match="coop on tools, seed 1: another seed was tested on other images"):
        answered(runs)


def test_the_report_shows_them_and_has_their_tables(tmp_path: Path) -> None:
    old = record("tools", "zero-shot", 0.4, 0.5)  # of an earlier version
    runs = put(tmp_path / "runs", old, record("tools", "coop", 0.7, 0.5, answers=[FIRST]))
    made = write_folder_report(runs)
    page = made.html.read_text()
    assert 'id="answers"' in page
    assert "whose records do not say: zero-shot." in " ".join(page.split())
    assert "3 of 11 test images" in page
    assert "base classes 72.7%" in page  # 8 of 11
    assert "<i>fish" not in page
    assert "&lt;i&gt;fish" in page
    first = ["Tools", "base-to-novel", "base classes", "coop", "16", "1"]
    assert rows(made.html.with_name("classes.csv"))[1] == [*first, CLASSES[0], "5", "0.6", "1", "0.75"]
    assert rows(made.html.with_name("confusions.csv"))[1:] == [
        [*first, CLASSES[0], CLASSES[0], "3"],
        [*first, CLASSES[0], "car", "2"],
        [*first, "car", "car", "2"],
        [*first, "car", "tree", "1"],
        [*first, "tree", "tree", "3"],
    ]
    assert "figure-confusion-tools-base-coop.svg" in {path.name for path in made.files}


def test_records_of_earlier_versions_are_reported_without(tmp_path: Path) -> None:
    made = write_folder_report(put(tmp_path / "runs", record("tools", "coop", 0.7, 0.5)))
    assert 'id="answers"' not in made.html.read_text()
    assert not {"classes.csv", "confusions.csv", "mistakes.csv"} & {path.name for path in made.files}


def test_a_page_of_many_runs_shows_the_methods_that_there_is_room_for() -> None:
    def shown(methods: list[str], data: int, *chosen: str) -> list[str]:
        runs = [
            record(f"data {at}", method, 0.7, 0.5, answers=[part([], [5, 3, 3], "base")])
            for at in range(data)
            for method in methods
        ]
        found = answers_shown(runs, "dear", "zero-shot", chosen)
        assert found is not None
        assert {*found.methods} | {*found.hidden} == {*methods}
        return found.methods

    methods = ["zero-shot", "coop", "dear"]
    assert shown(methods, 2) == methods  # 6 parts
    assert shown(methods, 11) == ["zero-shot", "dear"]  # 33 and 22
    assert shown(methods, 17) == ["dear"]  # 34 and 17
    assert shown(methods, 11, "coop") == ["coop"]
    with pytest.raises(DataError, match="no record holds answers of 'maple': those that do are of zero-shot"):
        shown(methods, 1, "maple")


def test_rare_confusions_that_are_left_out_are_told_in_place_of_the_matrix() -> None:
    runs = [record("tools", "coop", 0.7, 0.5, answers=[part([[0, 1, 2]], [3, 2, 3], left_out=1)])]
    page = report_html(title="x", records=runs)
    assert "1 images have rarer confusions" in page
    assert "Confusion matrix" not in page


def test_pictures_are_shown_while_they_are_what_was_tested(tmp_path: Path) -> None:
    same, changed = tmp_path / "same.png", tmp_path / "changed.png"
    for path in (same, changed):
        Image.new("RGB", (7, 11), (10, 200, 30)).save(path)
    sha = content_hash(same.read_bytes())
    Image.new("RGB", (7, 11)).save(changed)
    mistakes = [
        wrong(at, 0.9 - at / 10, file=name, sha256=sha)
        for at, name in enumerate(("same.png", "changed.png", "gone.png"))
    ]
    answers = [part([[0, 1, 3]], [2, 3, 3], folder=str(tmp_path), mistakes=mistakes)]
    (one,) = answered([record("tools", "coop", 0.7, 0.5, answers=answers)])
    found, gone = one.mistakes()
    assert [(m.name, m.said, m.right, m.confidence) for m in found] == [("same.png", "car", CLASSES[0], 0.9)]
    assert found[0].picture.size == (7, 11)
    assert found[0].picture.getpixel((3, 5)) == (10, 200, 30)
    assert gone == 2
    page = report_html(title="x", records=[record("tools", "coop", 0.7, 0.5, answers=answers)])
    assert "2 images are not shown" in " ".join(page.split())


def test_pictures_of_the_world_are_drawn_again() -> None:
    images = load_task("mixed-paints").test
    for identity, count in ((images.identity, 1), ("world/mixed-paints/test/seed43/v0/0", 0)):
        answers = [part([[0, 1, 1]], [4, 3, 3], identity=identity, mistakes=[wrong(7, 0.5)])]
        (one,) = answered([record("mixed-paints", "coop", 0.7, 0.5, answers=answers)])
        assert len(one.mistakes()[0]) == count


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"part": ["all"]}, "lacks 'results.all'"),
        ({"images": [5, 3]}, "its answers[0] has counts of another number of classes than 3"),
        ({"right": [6, 3, 3]}, "its answers[0].right counts more images than there are"),
        ({"confusions": [[0, 3, 1]]}, "its answers[0] names class 3 of 3, counted from 0"),
        ({"confusions": [[0, 1]]}, "its answers[0].confusions[0] has 2 values: it must have 3"),
        ({"mistakes": [wrong(0, 1.5)]}, "its answers[0].mistakes[0].confidence is 1.5"),
    ],
)
def test_damaged_answers_are_named(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    runs = put(tmp_path / "runs", record("tools", "coop", 0.7, 0.5, answers=[FIRST | changes]))
    with pytest.raises(DataError) as told:
        write_folder_report(runs)
    assert message in str(told.value)
