"""The mistakes that records hold, by hand, and how the report shows them."""

import csv
import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from dear.data.world.tasks import load_task
from dear.errors import DataError
from dear.evaluation.mistakes import content_hash
from dear.report.folder import write_folder_report
from dear.report.html import report_page
from dear.report.run_mistakes import mistakes_by_part, mistakes_page
from tests.unit.report.samples import record

CLASSES = ["<i>fish</i>", "car", "tree"]


def part(
    confusions: list[list[int]], correct: list[int], where: str = "base", **changes: Any
) -> dict[str, Any]:
    """Mistakes on five images of the first class and three of each other."""
    predicted = [
        correct[label] + sum(images for _, prediction, images in confusions if prediction == label)
        for label in range(3)
    ]
    return {
        "part": [where],
        "classes": CLASSES,
        "images": [5, 3, 3],
        "correct": correct,
        "predicted": predicted,
        "confusions": confusions,
        "left_out": 0,
        "identity": "gone",
        "examples": [],
    } | changes


FIRST = part([[0, 1, 2], [1, 2, 1]], [3, 2, 3])
SECOND = part([[1, 2, 3], [0, 1, 1]], [4, 0, 3])


def wrong(index: int, confidence: float, **changes: Any) -> dict[str, Any]:
    return {
        "index": index,
        "label": 0,
        "prediction": 1,
        "confidence": confidence,
        "probability": 0.01,
    } | changes


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
        record("tools", "coop", 0.7, 0.5, seed=1, mistakes=[FIRST]),
        record("tools", "coop", 0.6, 0.5, seed=2, mistakes=[SECOND]),
    ]
    (one,) = mistakes_by_part(runs)
    assert (one.dataset, one.part, one.method, one.seeds) == ("tools", "base classes", "coop", 2)
    assert one.mistakes.matrix().tolist() == [[7, 3, 0], [0, 2, 4], [0, 0, 6]]
    assert one.mistakes.frequent_pairs() == [("car", "tree", 4, 4 / 6), (CLASSES[0], "car", 3, 0.3)]
    assert one.mistakes.accuracy == 15 / 22
    fish, car, tree = one.mistakes.class_scores()
    assert (fish.accuracy, fish.precision, fish.f1) == (0.7, 1.0, pytest.approx(14 / 17))
    assert (car.accuracy, car.precision, car.f1) == (2 / 6, 2 / 5, pytest.approx(4 / 11))
    assert (tree.accuracy, tree.precision, tree.f1) == (1.0, 0.6, 0.75)


def test_an_image_that_several_seeds_mistake_is_shown_once() -> None:
    said = [[wrong(4, 0.6), wrong(2, 0.5)], [wrong(4, 0.9)]]
    runs = [
        record("tools", "coop", 0.7, 0.5, seed=seed, mistakes=[FIRST | {"examples": some}])
        for seed, some in enumerate(said, start=1)
    ]
    (one,) = mistakes_by_part(runs)
    assert [(m.title, m.confidence) for m in one.mistakes.examples] == [("image 5", 0.9), ("image 3", 0.5)]


def test_runs_on_other_images_are_not_summed() -> None:
    runs = [record("tools", "coop", 0.7, 0.5, mistakes=[FIRST])]
    runs += [record("tools", "coop", 0.7, 0.5, seed=2, mistakes=[FIRST | {"images": [6, 3, 3]}])]
    with pytest.raises(DataError, match="coop on tools, seed 1: another seed was tested on other images"):
        mistakes_by_part(runs)


def test_the_report_shows_them_and_has_their_tables(tmp_path: Path) -> None:
    without = record("tools", "zero-shot", 0.4, 0.5)
    runs = put(tmp_path / "runs", without, record("tools", "coop", 0.7, 0.5, mistakes=[FIRST]))
    made = write_folder_report(runs)
    page = made.html.read_text()
    assert 'id="mistakes"' in page
    assert "Runs whose records hold no mistakes: zero-shot." in " ".join(page.split())
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


def test_records_without_mistakes_are_reported(tmp_path: Path) -> None:
    made = write_folder_report(put(tmp_path / "runs", record("tools", "coop", 0.7, 0.5)))
    assert 'id="mistakes"' not in made.html.read_text()
    assert not {"classes.csv", "confusions.csv", "mistakes.csv"} & {path.name for path in made.files}


def test_a_page_of_many_runs_shows_the_methods_that_there_is_room_for() -> None:
    def shown(methods: list[str], data: int, *chosen: str) -> list[str]:
        runs = [
            record(f"data {at}", method, 0.7, 0.5, mistakes=[part([], [5, 3, 3], "base")])
            for at in range(data)
            for method in methods
        ]
        found = mistakes_page(runs, "dear", "zero-shot", chosen)
        assert found is not None
        assert {*found.methods} | {*found.hidden} == {*methods}
        return found.methods

    methods = ["zero-shot", "coop", "dear"]
    assert shown(methods, 2) == methods  # 6 parts
    assert shown(methods, 11) == ["zero-shot", "dear"]  # 33 and 22
    assert shown(methods, 17) == ["dear"]  # 34 and 17
    assert shown(methods, 11, "coop") == ["coop"]
    with pytest.raises(DataError, match="no record holds the mistakes of 'maple': those that"):
        shown(methods, 1, "maple")


def test_rare_confusions_that_are_left_out_are_told_in_place_of_the_matrix() -> None:
    runs = [record("tools", "coop", 0.7, 0.5, mistakes=[part([[0, 1, 2]], [3, 2, 3], left_out=1)])]
    page = report_page(title="x", records=runs).text
    assert "1 images have rarer confusions" in page
    assert "Confusion matrix" not in page


def test_pictures_are_shown_while_they_are_what_was_tested(tmp_path: Path) -> None:
    same, changed = tmp_path / "same.png", tmp_path / "changed.png"
    for path in (same, changed):
        Image.new("RGB", (7, 11), (10, 200, 30)).save(path)
    sha = content_hash(same.read_bytes())
    Image.new("RGB", (7, 11)).save(changed)
    examples = [
        wrong(at, 0.9 - at / 10, file=name, sha256=sha)
        for at, name in enumerate(("same.png", "changed.png", "gone.png"))
    ]
    mistakes = [part([[0, 1, 3]], [2, 3, 3], folder=str(tmp_path), examples=examples)]
    (one,) = mistakes_by_part([record("tools", "coop", 0.7, 0.5, mistakes=mistakes)])
    section = one.section("confusion")
    shown = [(image.title, image.prediction, image.label) for image in section.gallery]
    assert shown == [("same.png", "car 90%", f"{CLASSES[0]} 1%")]
    picture = one.tested[0].picture(one.mistakes.examples[0])
    assert picture is not None
    assert picture.size == (7, 11)
    assert picture.getpixel((3, 5)) == (10, 200, 30)
    assert section.unreadable == 2
    runs = [record("tools", "coop", 0.7, 0.5, mistakes=mistakes)]
    page = report_page(title="x", records=runs).text
    assert "2 images are not shown" in " ".join(page.split())


def test_pictures_of_the_world_are_drawn_again() -> None:
    images = load_task("mixed-paints").test
    for identity, count in ((images.identity, 1), ("world/mixed-paints/test/seed43/v0/0", 0)):
        mistakes = [part([[0, 1, 1]], [4, 3, 3], identity=identity, examples=[wrong(7, 0.5)])]
        (one,) = mistakes_by_part([record("mixed-paints", "coop", 0.7, 0.5, mistakes=mistakes)])
        assert len(one.section("confusion").gallery) == count


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"part": ["all"]}, "lacks 'results.all'"),
        ({"part": []}, "its mistakes[0].part is []: each names a part, once"),
        ({"images": [5, 3]}, "its mistakes[0] has counts of another number of classes than 3"),
        ({"confusions": [[0, 3, 1]]}, "its mistakes[0] names class 3 of 3, counted from 0"),
        ({"confusions": [[0, 1]]}, "its mistakes[0].confusions[0] has 2 values: it must have 3"),
        ({"examples": [wrong(0, 1.5)]}, "its mistakes[0].examples[0].confidence is 1.5"),
    ],
)
def test_damaged_mistakes_are_named(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    runs = put(tmp_path / "runs", record("tools", "coop", 0.7, 0.5, mistakes=[FIRST | changes]))
    with pytest.raises(DataError) as told:
        write_folder_report(runs)
    assert message in str(told.value)


def test_a_part_has_its_mistakes_once(tmp_path: Path) -> None:
    """Twice they counted as two seeds."""
    runs = put(tmp_path / "runs", record("tools", "coop", 0.7, 0.5, mistakes=[FIRST, FIRST]))
    with pytest.raises(DataError, match=r"its mistakes\[1\]\.part is \[.*\]: each names a part, once"):
        write_folder_report(runs)
