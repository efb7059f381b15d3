"""The page of an evaluation and the files beside it: its tables, its figures and their numbers."""

from pathlib import Path

from dear.errors import OutputError
from dear.report import diagnosis_plots as plots
from dear.report.diagnosis import Diagnosis
from dear.report.diagnosis_parts import FOLDED, classes_grid, gallery
from dear.report.files import csv_file, figure_files
from dear.report.grid import Grid
from dear.report.html import page
from dear.report.svg import Drawing, inline
from dear.writing.folders import LIST, try_place, write_folder

PAGE = "evaluation.html"


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
    grid = classes_grid(found.scores)
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
        mistakes=gallery(found.mistakes),
        looks=[(one, inline(drawings[f"attention-{at}"])) for at, one in enumerate(found.looks, start=1)],
        error=100 * found.calibration_error,
        selected=any("val" in one for one in found.epochs),
    )


def _cannot(folder: Path, error: OSError) -> OutputError:
    return OutputError(f"cannot write the page to {folder}: {error.strerror or error}; choose another --out.")
