"""A figure of a page: an SVG with deterministic bytes whose ink and font the page's style replaces by its own
(report.css); colors and axes that figures share.
"""

import html
import io
import re
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from matplotlib import style
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dear.text import printable

INK = "#010203"
"""Drawn in this color; report.css turns it into that of the text, which is light on a dark page."""
SMALLEST = 0.65
"""A wide figure shrinks to at most this share of its size, then scrolls: smaller text would be illegible."""
ON_PHONE = 5.8  # inches of a figure that fits on a phone without scrolling
LARGER = 1.25  # its text is then as large as the page's
# Okabe and Ito's palette, suited to color-blind readers; yellow, hard to see on white, comes last.
PALETTE = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9", "#F0E442")
NEUTRAL = "#8A919C"
DASHES = ("-", "--", ":", "-.")
MARKERS = ("o", "s", "^", "D", "P")

_STYLE: dict[str, Any] = {
    "font.size": 10,
    "svg.fonttype": "none",
    "pdf.fonttype": 42,  # text that a journal's checks accept
    "text.parse_math": False,  # a dollar sign in a class name is not mathematics
    "legend.frameon": False,
} | dict.fromkeys(["text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color"], INK)
UNDRAWN = r"Glyph \d+|Matplotlib currently does not support"
"""How matplotlib's warnings of characters in names begin for which it has no picture."""
UNUSED = re.compile(r'<!--.*?-->\s*|<metadata>.*?</metadata>\s*|(?<=<g) id="[\w.]+"', re.DOTALL)
"""Comments, metadata and the names of groups, which figures of one page share."""


@dataclass(frozen=True)
class Drawing:
    """A figure. In a template it becomes the SVG itself.

    Attributes:
        name: The base name of its file; its ids depend on it, so that several figures can be in one page.
        description: What it shows, for readers who cannot see it.
        size: Width and height in inches.
        paint: Draws into the empty figure.
    """

    name: str
    description: str
    size: tuple[float, float]
    paint: Callable[[Figure], None]

    @cached_property
    def svg(self) -> str:
        """The SVG: as a file, black on white."""
        text = self._draw("svg", ("Date", "Creator", "Format", "Type")).decode()
        width, _ = self.size
        look = (
            f"width: {width * LARGER:.2f}in; max-width: 100%; min-width: {width * SMALLEST:.2f}in; "
            "height: auto; background: #fff"
        )
        label = html.escape(self.description)
        text = UNUSED.sub("", text[text.index("<svg") :])
        return printable(
            text.replace("<svg", f'<svg role="img" aria-label="{label}" style="{look}"', 1), lines=True
        )

    @property
    def pdf(self) -> bytes:
        """The figure for LaTeX."""
        return self._draw("pdf", ("Creator", "Producer", "CreationDate"))

    def _draw(self, file_format: str, without: Iterable[str]) -> bytes:
        """The bytes of a file without some of its metadata: the same each time."""
        stream, figure = io.BytesIO(), Figure(figsize=self.size, layout="constrained")
        with warnings.catch_warnings(), style.context(["default", {**_STYLE, "svg.hashsalt": self.name}]):
            warnings.filterwarnings("ignore", UNDRAWN, UserWarning)  # no user can change it
            self.paint(figure)
            options: dict[str, Any] = {"transparent": True, "metadata": dict.fromkeys(without)}
            figure.savefig(stream, format=file_format, **options)
        return stream.getvalue()

    def __html__(self) -> str:
        """The SVG inside HTML; all text in it is escaped."""
        return self.svg


def figure_files(drawings: Iterable[Drawing]) -> dict[str, bytes]:
    """The SVGs and PDFs by file name, which begins with "figure-"."""
    files = dict[str, bytes]()
    for drawing in drawings:
        files |= {
            f"figure-{drawing.name}.svg": drawing.svg.encode(),
            f"figure-{drawing.name}.pdf": drawing.pdf,
        }
    return files


def line_style(number: int, colors: int = len(PALETTE)) -> dict[str, Any]:
    """The color and dashes of a line."""
    return {"color": PALETTE[number % colors], "linestyle": DASHES[number // colors % len(DASHES)]}


def legend_below(
    figure: Figure, columns: int, handles: Mapping[str, Artist] | None = None, **options: Any
) -> None:
    """One legend below all axes, of what they show or ``handles``, in as many columns as fit."""
    found = {
        label: handle
        for axes in figure.axes
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    keys = handles or found
    room = int(min(figure.get_figwidth(), ON_PHONE) * 14 / (6 + max(map(len, keys), default=0)))
    options = {"fontsize": 9, "handlelength": 1.8, "ncols": max(1, min(columns, room))} | options
    place: Any = "outside lower center" if figure.get_figwidth() <= ON_PHONE else "outside lower left"
    figure.legend([*keys.values()], [*keys], loc=place, **options)


def plain_axes(axes: Axes, grid: Literal["x", "y"] = "y") -> None:
    """Axes without a frame, with faint grid lines, horizontal ones by default."""
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="y", length=0)
    axes.grid(axis=grid, color=INK, alpha=0.15, linewidth=0.8)
    axes.set_axisbelow(True)
