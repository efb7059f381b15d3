"""The page of an evaluation and the files beside it: its tables, its figures and their numbers."""

from collections.abc import Sequence
from pathlib import Path

from dear.errors import OutputError
from dear.report import diagnosis_plots as plots
from dear.report.diagnosis import Diagnosis
from dear.report.files import csv_file, figure_files
from dear.report.grid import Cell, Grid, GridRow
from dear.report.html import page
from dear.report.roles_pictures import data_url
from dear.report.svg import Drawing, inline
from dear.writing.folders import LIST, try_place, write_folder

PAGE = "evaluation.html"
THUMBNAIL = 112  # pixels
FOLDED = 20
"""Classes above which the table of classes is folded away."""


def check_folder(folder: Path) -> None:
    """Raise OutputError if the folder of a page cannot be written to, before anything is computed."""
    try:
        try_place(folder)
    except OSError as error:
        raise _cannot(folder, error) from error


def write_diagnosis(folder: Path, found: Diagnosis) -> tuple[Path, ...]:
    """Write the page, ``evaluation.html``, its tables as CSV, Markdown and LaTeX, and its figures as SVG,
    PNG, LaTeX and CSV; all files or none. Returns them, the page first. Raises OutputError.
    """
    drawings = figures(found)
    grid = classes_grid(found)
    contents: dict[str, bytes] = {
        PAGE: diagnosis_html(found, drawings, grid).encode(),
        f"{grid.name}.csv": grid.to_csv().encode(),
        f"{grid.name}.md": grid.to_markdown().encode(),
        f"{grid.name}.tex": grid.to_latex().encode(),
        "mistakes.csv": csv_file(
            [
                ["image", "answer", "confidence", "class", "probability of the class"],
                *([m.name, m.said, m.confidence, m.right, m.probability] for m in found.mistakes),
            ]
        ),
        **figure_files(drawings.values()),
    }
    try:
        write_folder(folder, {**contents, LIST: "\n".join(contents).encode()})
    except OSError as error:
        raise _cannot(folder, error) from error
    return tuple(folder / name for name in contents)


def figures(found: Diagnosis) -> dict[str, Drawing]:
    """The figures by name, those that there is something for."""
    drawn = [
        plots.confusion_map(found.confusion, found.classes),
        plots.reliability_diagram(found.bins, found.calibration_error),
    ]
    if found.epochs:
        drawn.append(plots.learning_curve(found.epochs))
    drawn += [plots.attention_figure(one, f"attention-{at}") for at, one in enumerate(found.looks, start=1)]
    if found.features is not None:
        drawn.append(plots.feature_map(found.features, found.classes))
    return {one.name: one for one in drawn}


def classes_grid(found: Diagnosis) -> Grid:
    """Accuracy, precision and F1 by class, the worst F1 first, and their means."""
    rows = [
        GridRow(
            one.name,
            (
                Cell(one.images, decimals=0),
                Cell(100 * one.accuracy),
                None if one.precision is None else Cell(100 * one.precision),
                Cell(100 * one.f1),
            ),
        )
        for one in sorted(found.scores, key=lambda score: (score.f1, score.name))
    ]
    count = len(found.scores)
    means = [sum(values) / count for values in zip(*((s.accuracy, s.f1) for s in found.scores), strict=True)]
    total = sum(one.images for one in found.scores)
    mean = (Cell(total, decimals=0), Cell(100 * means[0]), None, Cell(100 * means[1]))
    return Grid(
        "classes",
        "Accuracy by class",
        "Class",
        ("Images", "Accuracy", "Precision", "F1"),
        (GridRow("Mean of the classes", mean), *rows),
        (
            "Percent. Accuracy: share of a class's images that are given the class (recall); precision: "
            "share of the images given the class that have it; F1: their harmonic mean. The worst F1 first.",
        ),
    )


def diagnosis_html(found: Diagnosis, drawings: dict[str, Drawing], grid: Grid) -> str:
    """The text of the page; a deterministic function of its input."""
    return page(
        "evaluation.html.j2",
        found=found,
        tiles=list(found.numbers.items()),
        grid=grid,
        folded=len(grid.rows) > FOLDED,
        pairs=plots.confused_pairs(found.confusion, found.classes),
        wrong=int(found.confusion.sum() - found.confusion.trace()),
        images=int(found.confusion.sum()),
        drawn={name: inline(one) for name, one in drawings.items()},
        mistakes=_mistakes(found),
        looks=[(one, inline(drawings[f"attention-{at}"])) for at, one in enumerate(found.looks, start=1)],
        error=100 * found.calibration_error,
        selected=any("val" in one for one in found.epochs),
    )


def _mistakes(found: Diagnosis) -> Sequence[tuple[str, str, str, str, str]]:
    """(data URL, file, answer with its confidence, class with its probability, text alternative)"""
    shown = []
    for one in found.mistakes:
        small = one.picture.copy()
        small.thumbnail((THUMBNAIL, THUMBNAIL))
        said, right = f"{one.said} {_percent(one.confidence)}", f"{one.right} {_percent(one.probability)}"
        shown.append(
            (data_url(small, "JPEG", quality=80), one.name, said, right, f"{one.right} taken for {one.said}")
        )
    return shown


def _percent(share: float) -> str:
    return f"{100 * share:.0f}%" if share >= 0.005 or share == 0 else "<1%"


def _cannot(folder: Path, error: OSError) -> OutputError:
    return OutputError(f"cannot write the page to {folder}: {error.strerror or error}; choose another --out.")
