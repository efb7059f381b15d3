"""The files of figures: each as SVG and PNG, its numbers as CSV, and LaTeX that includes it."""

import csv
import io
from collections.abc import Iterable

from dear.report.grid import csv_text, latex_text
from dear.report.svg import Drawing, Rows

LATEX = r"""\begin{{figure}}
\centering
\includegraphics[width=\linewidth]{{{name}.png}}
\caption{{{caption}}}
\label{{fig:{label}}}
\end{{figure}}
"""


def figure_files(drawings: Iterable[Drawing]) -> dict[str, bytes]:
    """The contents of the files by name, which begins with "figure-"; the caption is the description."""
    found: dict[str, bytes] = {}
    for drawing in drawings:
        name = f"figure-{drawing.name}"
        text = LATEX.format(name=name, caption=latex_text(drawing.description), label=drawing.name)
        found |= {
            f"{name}.svg": drawing.alone().encode(),
            f"{name}.png": drawing.png(),
            f"{name}.tex": text.encode(),
        }
        if drawing.data:
            found[f"{name}.csv"] = csv_file(drawing.data)
    return found


def csv_file(rows: Rows) -> bytes:
    """Rows as CSV; fractions with six digits, no text that a spreadsheet takes for a formula."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    for row in rows:
        writer.writerow(
            f"{value:.6g}"
            if isinstance(value, float)
            else csv_text(value)
            if isinstance(value, str)
            else value
            for value in row
        )
    return stream.getvalue().encode()
