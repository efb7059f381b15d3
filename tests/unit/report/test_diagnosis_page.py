"""The page of an evaluation: what it says, its files, and names that are no markup."""

import csv
import io
import struct
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from PIL import Image

from dear.errors import OutputError
from dear.evaluation.diagnosis import class_scores, confusion, reliability
from dear.report import diagnosis_plots as plots
from dear.report.diagnosis import Diagnosis, FeatureMap, Look, Looks, Mistake
from dear.report.diagnosis_page import check_folder, figures, write_diagnosis
from dear.report.diagnosis_parts import classes_grid

LABELS = torch.tensor([0] * 5 + [1] * 3 + [2] * 3)
GUESSES = torch.tensor([0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2])
CLASSES = ("<b>red</b>", "blue", "green $x$")
GREY = Image.new("RGB", (23, 29), (90, 90, 90))


def diagnosis() -> Diagnosis:
    counts = confusion(LABELS, GUESSES, 3)
    look = Look(9, 2, "color", {"plain CLIP, class": GREY, "adapted, class": GREY})
    points = {"class": torch.arange(22.0).view(11, 2), "color": torch.zeros(11, 2)}
    return Diagnosis(
        subject="a method on a backbone",
        data="Toys",
        split="test",
        numbers={"accuracy": "72.7%"},
        classes=CLASSES,
        confusion=counts,
        scores=class_scores(counts, CLASSES),
        bins=reliability(torch.linspace(0.4, 0.9, 11), LABELS == GUESSES),
        calibration_error=0.125,
        mistakes=(Mistake(GREY, "=a.jpg", "blue", 0.875, CLASSES[0], 0.001),),
        epochs=({"epoch": 1, "loss": 2.5, "val": 0.5}, {"epoch": 2, "loss": 1.25, "val": 0.75}),
        looks=(Looks(GREY, "a.jpg (blue)", (look,)),),
        features=FeatureMap(points, LABELS),
        notes=("No such thing: it needs more.",),
    )


def test_all_files_are_written_and_the_page_needs_no_other(tmp_path: Path) -> None:
    files = {path.name: path for path in write_diagnosis(tmp_path / "out", diagnosis())}
    names = ("confusion", "reliability", "learning", "attention-1", "features")
    wanted = {f"figure-{name}.{kind}" for name in names for kind in ("svg", "png", "tex", "csv")}
    wanted.remove("figure-attention-1.csv")  # pictures have no numbers
    assert {*files} == wanted | {
        "evaluation.html",
        "classes.csv",
        "classes.md",
        "classes.tex",
        "mistakes.csv",
    }
    text = files["evaluation.html"].read_text()
    assert "<b>red" not in text
    assert "http://www.w3.org" not in text.replace('xmlns:xlink="http://www.w3.org/1999/xlink"', "")
    assert 'src="data:image/jpeg;base64,' in text
    assert "8 images" not in text
    assert "3 of them are given a wrong class" in text
    assert "No such thing: it needs more." in text


def test_the_figures_files_stand_alone(tmp_path: Path) -> None:
    files = {path.name: path for path in write_diagnosis(tmp_path, diagnosis())}
    svg = ElementTree.fromstring(files["figure-reliability.svg"].read_text())
    assert svg.tag == "{http://www.w3.org/2000/svg}svg"
    assert "color: #000; background: #fff" in svg.attrib["style"]
    drawing = figures(diagnosis())["reliability"]
    width, height = struct.unpack(">II", drawing.png()[16:24])
    assert (width, height) == (1040, 880)  # 5.2 x 4.4 inches at 200 dots each
    assert files["figure-reliability.png"].read_bytes() == drawing.png()
    tex = files["figure-confusion.tex"].read_text()
    assert r"\includegraphics[width=\linewidth]{figure-confusion.png}" in tex
    assert r"\label{fig:confusion}" in tex
    assert r"\textless{}b\textgreater{}red" in tex


def test_the_numbers_of_the_figures_are_files(tmp_path: Path) -> None:
    files = {path.name: path for path in write_diagnosis(tmp_path, diagnosis())}

    def rows(name: str) -> list[list[str]]:
        return [*csv.reader(io.StringIO(files[name].read_text()))]

    assert rows("figure-confusion.csv")[1:] == [
        [CLASSES[0], "3", "2", "0"],
        ["blue", "0", "2", "1"],
        [CLASSES[2], "0", "0", "3"],
    ]
    assert rows("figure-learning.csv") == [
        ["epoch", "loss", "validation accuracy"], ["1", "2.5", "0.5"], ["2", "1.25", "0.75"],
    ]  # fmt: skip
    assert rows("mistakes.csv")[1] == ["'=a.jpg", "blue", "0.875", CLASSES[0], "0.001"]
    assert len(rows("figure-features.csv")) == 1 + 2 * 11


def test_the_worst_class_comes_first_after_the_means() -> None:
    grid = classes_grid(diagnosis().scores)
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


def test_pairs_are_the_most_frequent_confusions() -> None:
    found = plots.confused_pairs(confusion(LABELS, GUESSES, 3), CLASSES)
    assert found == [(CLASSES[0], "blue", 2, 0.4), ("blue", CLASSES[2], 1, pytest.approx(1 / 3))]


def test_names_of_many_classes_stay_out_of_the_matrix_but_not_of_the_numbers() -> None:
    labels = torch.arange(61)
    drawing = plots.confusion_map(confusion(labels, labels, 61), [f"class {at}" for at in range(61)])
    assert "class 7<" not in drawing
    assert drawing.data[0][8] == "class 7"


def test_what_there_is_nothing_for_is_left_out(tmp_path: Path) -> None:
    bare = replace(diagnosis(), mistakes=(), epochs=(), looks=(), features=None, notes=())
    assert {*figures(bare)} == {"confusion", "reliability"}
    text = write_diagnosis(tmp_path, bare)[0].read_text()
    for heading in ("mistakes", "learning", "attention", "features", "notes"):
        assert f'id="{heading}"' not in text


def test_a_place_that_cannot_be_written_is_told_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="choose another --out"):
        check_folder(tmp_path / "file" / "out")
