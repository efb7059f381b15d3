"""The page of an evaluation: what it says, its files, and names that are no markup."""

import csv
import io
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from pandas import DataFrame
from PIL import Image

from dear.errors import OutputError
from dear.evaluation.metrics import Bin, reliability
from dear.report.evaluation_page import (
    AttentionExample,
    Evaluation,
    FeatureMap,
    HeadAttention,
    check_folder,
    reliability_diagram,
    write_evaluation_page,
)
from dear.report.mistakes import Mistakes, classes_grid, mistakes_section

LABELS = torch.tensor([0] * 5 + [1] * 3 + [2] * 3)
GUESSES = torch.tensor([0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2])
CLASSES = ("<b>red</b>", "blue", "green $x$")
GREY = Image.new("RGB", (23, 29), (90, 90, 90))


MISTAKES = Mistakes(
    CLASSES,
    DataFrame({"label": [0, 0, 1, 1, 2], "prediction": [0, 1, 1, 2, 2], "images": [3, 2, 2, 1, 3]}),
    DataFrame(
        [(3, 0, 1, 0.875, 0.001, "=a.jpg", "")],
        columns=["image", "label", "prediction", "confidence", "probability", "file", "folder"],
    ),
)


def evaluation() -> Evaluation:
    attention = HeadAttention(9, 2, "color", {"plain CLIP, class": GREY, "adapted, class": GREY})
    points = {"class": torch.arange(22.0).view(11, 2), "color": torch.zeros(11, 2)}
    return Evaluation(
        subject="a method on a backbone",
        data="Toys",
        split="test",
        metrics={"accuracy": "72.7%"},
        mistakes=mistakes_section(MISTAKES, [GREY]),
        bins=reliability(torch.linspace(0.4, 0.9, 11), LABELS == GUESSES),
        epochs=({"epoch": 1, "loss": 2.5, "val": 0.5}, {"epoch": 2, "loss": 1.25, "val": 0.75}),
        attention=(AttentionExample(GREY, "a.jpg (blue)", (attention,)),),
        features=FeatureMap(points, LABELS),
        notes=("No such thing: it needs more.",),
    )


def test_all_files_are_written_and_the_page_needs_no_other(tmp_path: Path) -> None:
    files = {path.name: path for path in write_evaluation_page(tmp_path / "out", evaluation())}
    names = ("confusion", "reliability", "learning", "attention-1", "features")
    tables = {"classes.csv", "confusions.csv", "mistakes.csv"}
    assert {*files} == {f"figure-{name}.svg" for name in names} | tables | {"evaluation.html"}
    text = files["evaluation.html"].read_text()
    assert "<b>red" not in text
    assert "http://www.w3.org" not in text.replace('xmlns:xlink="http://www.w3.org/1999/xlink"', "")
    assert 'src="data:image/jpeg;base64,' in text
    assert "8 images" not in text
    # 8 of 11 by Wilson; confidences 0.4, 0.45 ... 0.9 have a mean of 0.65.
    assert "8 of 11 test images are right: 72.7%, 95% interval 43.4 to 90.3%." in text
    assert "it is underconfident by 7.7 points: its mean confidence is 65.0%, its accuracy 72.7%." in text
    assert "No such thing: it needs more." in text


def test_a_bar_is_as_wide_as_its_bin() -> None:
    bins = (Bin(0.0, 0.5, 3, 0.4, 0.3), Bin(0.5, 0.6, 2, 0.55, 0.5), Bin(0.6, 1.0, 0, 0.0, 0.0))
    figure = Figure()
    reliability_diagram(bins).paint(figure)
    for axes in figure.axes:
        bars = [bar for bar in axes.patches if isinstance(bar, Rectangle)]
        assert [(bar.get_x(), bar.get_width()) for bar in bars] == [
            (pytest.approx(2.5), pytest.approx(45)),  # nine tenths, in the middle
            (pytest.approx(50.5), pytest.approx(9)),
        ]


def test_the_numbers_are_files(tmp_path: Path) -> None:
    files = {path.name: path for path in write_evaluation_page(tmp_path, evaluation())}

    def rows(name: str) -> list[list[str]]:
        return [*csv.reader(io.StringIO(files[name].read_text()))]

    scores = {name: row for name, *row in rows("classes.csv")}
    assert scores["blue"] == ["3", "0.666667", "0.5", "0.571429"]  # 2 of 3, 2 of 4, 4 of 7
    assert rows("confusions.csv")[1:3] == [[CLASSES[0], CLASSES[0], "3"], [CLASSES[0], "blue", "2"]]
    assert rows("mistakes.csv")[0] == ["file", "prediction", "probability", "class", "class_probability"]
    assert rows("mistakes.csv")[1] == ["'=a.jpg", "blue", "0.875", CLASSES[0], "0.001"]


def test_the_worst_class_comes_first_after_the_means() -> None:
    grid = classes_grid(MISTAKES.class_scores())
    assert [row.label for row in grid.rows] == ["Mean of the classes", "blue", CLASSES[0], CLASSES[2]]
    images, accuracy, precision, f1 = grid.rows[1].cells
    assert [cell and round(cell.mean, 2) for cell in (images, accuracy, precision, f1)] == [
        3,
        66.67,
        50.0,
        57.14,
    ]
    # By hand: recalls 3/5, 2/3, 1; F1s 6/8, 4/7, 6/7.
    means = grid.rows[0].cells
    assert means[1] is not None
    assert means[3] is not None
    assert means[1].mean == pytest.approx(100 * (3 / 5 + 2 / 3 + 1) / 3)
    assert means[3].mean == pytest.approx(100 * (6 / 8 + 4 / 7 + 6 / 7) / 3)


def test_many_classes_have_a_list_of_confusions_for_a_matrix(tmp_path: Path) -> None:
    """The classes of a stranger's bundle: a matrix of 15,000 would take more than 10 GB."""
    many = replace(MISTAKES, classes=(*CLASSES, *(f"class {number}" for number in range(998))))
    section = mistakes_section(many, [GREY])
    assert section.matrix is None
    page = write_evaluation_page(tmp_path, replace(evaluation(), mistakes=section, features=None))[0]
    assert "1001 classes are too many" in page.read_text()
    rows = [*csv.reader(io.StringIO((tmp_path / "confusions.csv").read_text("utf-8-sig")))]
    red, blue, green = CLASSES
    assert rows == [
        ["class", "prediction", "images"],
        [red, red, "3"],
        [red, blue, "2"],
        [blue, blue, "2"],
        [blue, green, "1"],
        [green, green, "3"],
    ]


def test_a_place_that_cannot_be_written_is_told_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="choose another --out"):
        check_folder(tmp_path / "file" / "out")
