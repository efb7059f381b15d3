"""What classifiers get wrong, by hand and against scikit-learn, and how the report shows it."""

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from dear.errors import DataError
from dear.evaluation.predictions import ImagePredictions, predictions_file
from dear.report.mistakes import classes_grid, find_mistakes, mistakes_section
from dear.report.report_page import report_page, write_folder_report
from dear.report.run_mistakes import mistakes_by_part
from tests.helpers.records import CLASSES, predictions, record

FIRST = [0, 0, 0, 1, 1], [1, 1, 2], [2, 2, 2]
SECOND = [0, 0, 0, 0, 1], [2, 2, 2], [2, 2, 2]
"""By class, what each of its images is predicted to be."""
Write = Callable[..., dict[str, Any]]


@pytest.fixture
def run(tmp_path: Path) -> Write:
    """Makes a record in the folder "runs", with predictions beside it."""
    (tmp_path / "runs").mkdir()

    def write(data: str, method: str, made: ImagePredictions | None = None, **changes: Any) -> dict[str, Any]:
        path = tmp_path / "runs" / f"{data}-{method}-{changes.get('seed', 1)}.json"
        of_run = record(data, method, 0.7, 0.5, **changes)
        path.write_text(json.dumps(of_run))
        if made is None:
            return of_run
        path.with_suffix(".npz").write_bytes(predictions_file({"base": made}))
        return of_run | {"predictions": path.with_suffix(".npz")}

    return write


def rows(path: Path) -> list[list[str]]:
    with path.open(newline="") as file:
        return [*csv.reader(file)]


def test_seeds_are_summed_by_hand(run: Write) -> None:
    runs = [run("tools", "coop", predictions(part), seed=seed) for seed, part in ((1, FIRST), (2, SECOND))]
    (one,) = mistakes_by_part(runs)
    assert (one.dataset, one.part, one.method, one.seeds) == ("tools", "base classes", "coop", 2)
    assert one.mistakes.matrix().tolist() == [[7, 3, 0], [0, 2, 4], [0, 0, 6]]
    assert one.mistakes.frequent_pairs() == [("car", "tree", 4, 4 / 6), (CLASSES[0], "car", 3, 0.3)]
    assert one.mistakes.accuracy == pytest.approx(15 / 22)
    fish, car, tree = one.mistakes.class_scores().to_numpy().tolist()
    assert fish == [CLASSES[0], 10, 0.7, 1.0, pytest.approx(14 / 17)]
    assert car == ["car", 6, 2 / 6, 2 / 5, pytest.approx(4 / 11)]
    assert tree == ["tree", 6, 1.0, 0.6, 0.75]


def test_the_worst_class_comes_first_after_the_means() -> None:
    """By hand: recalls 3/5, 2/3, 1; F1s 6/8, 4/7, 6/7."""
    grid = classes_grid(find_mistakes([predictions(FIRST)]).class_scores())
    assert [row.label for row in grid.rows] == ["Mean of the classes", "car", CLASSES[0], "tree"]
    means = [cell and cell.mean for cell in grid.rows[0].cells]
    assert means == [11, pytest.approx(100 * 34 / 45), None, pytest.approx(100 * (3 / 4 + 4 / 7 + 6 / 7) / 3)]


def test_many_classes_have_a_list_of_confusions_for_a_matrix() -> None:
    """The classes of a stranger's bundle: a matrix of 15,000 would take more than 10 GB."""
    names = np.array([*CLASSES, *(f"class {number}" for number in range(998))])
    assert mistakes_section(find_mistakes([predictions(FIRST, classes=names)]), []).matrix is None


def test_scores_are_those_of_scikit_learn() -> None:
    metrics = pytest.importorskip("sklearn.metrics", reason="the extra `roles` is not installed")
    by_class = np.random.default_rng(3).integers(7, size=(7, 31))
    found = find_mistakes([predictions(by_class, classes=np.array([*"abcdefg"]))])  # type: ignore[arg-type]
    labels = np.repeat(range(7), 31)
    expected = metrics.precision_recall_fscore_support(labels, by_class.ravel())
    assert found.matrix().tolist() == metrics.confusion_matrix(labels, by_class.ravel()).tolist()
    scores = found.class_scores()[["precision", "accuracy", "F1", "images"]].to_numpy()
    assert scores == pytest.approx(np.stack(expected, axis=1))


def test_the_most_confident_of_each_confusion_come_first() -> None:
    made = predictions([[0, 1, 1], [0, 2], [1, 1]], [0.99, 0.5, 0.6, 0.4, 0.7, 0.95, 0.9])
    shown = find_mistakes([made]).examples.head(5)
    assert shown.image.tolist() == [5, 4, 2, 3, 6]  # tree-car, car-tree, fish-car, car-fish; tree-car again
    assert shown.confidence.tolist() == pytest.approx([0.95, 0.7, 0.6, 0.4, 0.9])
    assert shown.probability.tolist() == pytest.approx([0.01] * 5)
    assert find_mistakes([predictions([[0], [1], [2]])]).examples.empty


def test_an_image_that_several_seeds_mistake_is_shown_once() -> None:
    seeds = [
        predictions([[0, 0, 1], [1], [1]], confidence) for confidence in (0.6, [0.9, 0.9, 0.7, 0.9, 0.5])
    ]
    assert find_mistakes(seeds).examples[["image", "confidence"]].to_numpy().tolist() == [
        [2, pytest.approx(0.7)], [4, pytest.approx(0.6)],
    ]  # fmt: skip


def test_runs_on_other_images_are_not_summed(run: Write) -> None:
    parts = [[0] * 5, [1] * 3, [2] * 3], [[0] * 6, [1] * 3, [2] * 3]
    runs = [run("tools", "coop", predictions(part), seed=seed) for seed, part in enumerate(parts, start=1)]
    with pytest.raises(DataError, match="coop on tools, seed 1: another seed was tested on other images"):
        mistakes_by_part(runs)


def test_the_report_shows_them_and_has_their_tables(run: Write, tmp_path: Path) -> None:
    run("tools", "zero-shot")
    run("tools", "coop", predictions(FIRST))
    made = write_folder_report(tmp_path / "runs")
    page = " ".join(made.html.read_text().split())
    assert "Runs without predictions beside their records: zero-shot." in page
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


def test_images_of_few_groups_make_intervals_too_narrow(run: Write) -> None:
    """11 images of four clips: no interval over images counts the clips."""
    narrow = "These images are from 4 groups, and the intervals count each image: they are too narrow."
    for groups, is_said in ((np.arange(11) // 3, True), (np.arange(11), False)):
        runs = [run("tools", name, predictions(FIRST, groups=groups)) for name in ("zero-shot", "coop")]
        page = report_page(title="t", records=runs, against="zero-shot")
        assert (f"%). {narrow}</p>" in page.text) is is_said
        (against,) = [grid for grid in page.tables if grid.name.endswith("against")]
        assert any("tools base are from 4 groups" in note for note in against.notes) is is_said


def test_the_page_shows_the_main_method_and_its_reference(run: Write) -> None:
    methods = ["zero-shot", "coop", "dear"]
    runs = [run(f"data {at}", method, predictions(FIRST)) for at in range(2) for method in methods]
    for against, shown in ((None, ["zero-shot", "coop"]), ("dear", ["coop", "dear"])):
        page = report_page(title="t", records=runs, against=against)
        assert f"for {', '.join(shown)}: open a method" in " ".join(page.text.split())
        assert {mistakes.method for mistakes in page.mistakes} == {*methods}  # of the tables


def test_pictures_are_shown_while_they_are_there(run: Write, tmp_path: Path) -> None:
    Image.new("RGB", (7, 11), (10, 200, 30)).save(tmp_path / "a.png")
    files = {"paths": np.array(["a.png", "gone.png", "c.png"]), "folder": np.array(str(tmp_path))}
    made = run("tools", "coop", predictions([[1, 1], [], [2]], **files))
    (one,) = mistakes_by_part([made])
    section = one.section("confusion")
    assert [(photo["title"], photo["captions"]) for photo in section.gallery] == [
        ("a.png", {"prediction": "car 90%", "class": f"{CLASSES[0]} 1%"})
    ]
    assert section.unreadable == 1
    assert "1 image is not shown" in " ".join(report_page(title="x", records=[made]).text.split())


def test_pictures_of_the_world_are_drawn_again(run: Write) -> None:
    (one,) = mistakes_by_part([run("mixed-paints", "coop", predictions(FIRST))])
    assert len(one.section("confusion").gallery) == 3
