"""A figure of a page: an SVG with deterministic bytes and text in the page's own color; colors and axes
that figures share.
"""

import html
import io
import math
import re
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from matplotlib import style
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch

from dear.errors import printable

# Drawn in this color and written as currentColor: it turns light on a dark page.
INK = "#010203"
PAGE_FONT = "system-ui, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"
# A wide figure shrinks to at most this share of its size, then scrolls; smaller text would be illegible.
SMALLEST = 0.65
ON_PHONE = 5.8  # inches of a figure that fits on a phone without scrolling
LARGER = 1.25  # its text is then as large as the page's
MARKS = 2000
"""Bars, cells or points of a figure. More take minutes to lay out and are illegible."""
# Okabe and Ito's palette, suited to color-blind readers; yellow, hard to see on white, comes last.
PALETTE = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9", "#F0E442")
NEUTRAL = "#8A919C"
HEAT = "#2F86D1"
DASHES = ("-", "--", ":", "-.")
MARKERS = ("o", "s", "^", "D", "P")
_NAMESPACE = ' xmlns="http://www.w3.org/2000/svg"'

_STYLE: dict[str, Any] = {
    "font.size": 10,
    "svg.fonttype": "none",
    # A dollar sign in a class name is not mathematics.
    "text.parse_math": False,
    "text.color": INK,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "legend.frameon": False,
}

UNDRAWN = r"Glyph \d+|Matplotlib currently does not support"
"""How matplotlib's warnings of characters in names begin for which it has no picture."""


@dataclass(frozen=True)
class Drawing:
    """A figure. In a template it becomes the SVG itself.

    Attributes:
        name: Prefix of its ids, so that several figures can be in one page; the base name of its files.
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
        """The SVG for a page, with its namespace."""
        stream, figure = io.StringIO(), Figure(figsize=self.size, layout="constrained")
        metadata = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        with warnings.catch_warnings(), style.context(["default", {**_STYLE, "svg.hashsalt": self.name}]):
            warnings.filterwarnings("ignore", UNDRAWN, UserWarning)  # no user can change it
            self.paint(figure)
            figure.savefig(stream, format="svg", transparent=True, metadata=metadata)
        page = _for_page(stream.getvalue(), self.name, self.description, self.size[0])
        return printable(page, lines=True)

    def __html__(self) -> str:
        """The SVG inside HTML, where it needs no namespace; all text in it is escaped."""
        return self.svg.replace(_NAMESPACE, "", 1)

    def standalone(self) -> str:
        """The SVG as a file: black on white, whatever shows it."""
        return self.svg.replace('style="', 'style="color: #000; background: #fff; ', 1)


def drawable(*counts: int) -> bool:
    """False for so many rows, columns, panels ... that their product is more than a figure holds; it is then
    left out.
    """
    return math.prod(counts) <= MARKS


def figure_files(drawings: Iterable[Drawing]) -> dict[str, bytes]:
    """The SVGs by file name, which begins with "figure-"."""
    return {f"figure-{drawing.name}.svg": drawing.standalone().encode() for drawing in drawings}


def _for_page(text: str, name: str, description: str, width: float) -> str:
    """Remove what only a standalone file needs, make ids unique, let color and font follow the page. Names
    between the tags stay as they are.
    """
    text = re.sub(r"<!--.*?-->\s*", "", text[text.index("<svg") :], flags=re.DOTALL)
    text = re.sub(r"<defs>\s*<style[^>]*>.*?</style>\s*</defs>\s*", "", text, count=1, flags=re.DOTALL)
    text = re.sub(r"<metadata>.*?</metadata>\s*", "", text, count=1, flags=re.DOTALL)
    id_or_reference = re.compile(r'( id="| href="#|url\(#)')

    def for_page(match: re.Match[str]) -> str:
        tag = match[0].replace(' xmlns:xlink="http://www.w3.org/1999/xlink"', "")
        tag = tag.replace("xlink:href=", "href=").replace(INK, "currentColor")
        tag = id_or_reference.sub(rf"\g<1>{name}-", tag)
        return re.sub(r"(font: [^'\";]*?px) [^;\"]*", rf"\1 {PAGE_FONT}", tag)

    text = re.sub(r"<[^>]*>", for_page, text)
    look = (
        f"width: {width * LARGER:.2f}in; max-width: 100%; min-width: {width * SMALLEST:.2f}in; height: auto; "
        "stroke-linejoin: round"
    )
    label = html.escape(description, quote=True)
    return text.replace("<svg", f'<svg role="img" aria-label="{label}" style="{look}"', 1).strip() + "\n"


def concept_styles(concepts: Sequence[str]) -> dict[str, tuple[str, str]]:
    """A color and a marker for each concept; the pairs are distinct for up to 35 concepts."""
    return {
        concept: (PALETTE[number % len(PALETTE)], MARKERS[number // len(PALETTE) % len(MARKERS)])
        for number, concept in enumerate(concepts)
    }


def line_style(number: int, colors: int = len(PALETTE)) -> dict[str, Any]:
    """The color and dashes of a line."""
    return {"color": PALETTE[number % colors], "linestyle": DASHES[number // colors % len(DASHES)]}


def describe(rows: Mapping[str, Mapping[str, float]], form: str = ".1f") -> str:
    """Numbers by row and column in words, for readers who cannot see a figure; unknown ones are left out."""
    return "; ".join(
        f"{row}: " + ", ".join(f"{name} {value:{form}}" for name, value in values.items() if value == value)
        for row, values in rows.items()
    )


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


def cell_axes(figure: Figure, columns: Sequence[str], rows: Sequence[str], across: str, down: str) -> Axes:
    """Empty axes for cells at integer positions, the first row on top, column names above."""
    axes = figure.add_subplot()
    axes.set_xlim(-0.5, len(columns) - 0.5)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_xticks(range(len(columns)), columns)
    axes.set_yticks(range(len(rows)), rows)
    axes.xaxis.tick_top()
    axes.xaxis.set_label_position("top")
    axes.set_xlabel(across)
    axes.set_ylabel(down)
    axes.tick_params(length=0)
    for spine in axes.spines.values():
        spine.set_visible(False)
    return axes


def draw_cell(axes: Axes, x: float, y: float, color: str, alpha: float = 1.0) -> None:
    """A rounded cell of `cell_axes`."""
    shape = "round,pad=0,rounding_size=0.06"
    box = FancyBboxPatch((x - 0.475, y - 0.46), 0.95, 0.92, shape, facecolor=color, alpha=alpha, linewidth=0)
    axes.add_patch(box)
