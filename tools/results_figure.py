"""The figure of docs/study.md: accuracies of the methods with intervals, as SVG text.

It is written without a drawing library, so that the same numbers give the same file on every machine.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args
from xml.sax.saxutils import escape, quoteattr

Kind = Literal["base", "novel", "joint HM"]

COLORS: dict[Kind, str] = {"base": "#d55e00", "novel": "#0072b2", "joint HM": "#007a5a"}
GREY = "#64748b"
LEFT, RIGHT, TOP, ROW, BOTTOM = 130, 20, 44, 40, 40
WIDTH = 760
OFFSETS: dict[Kind, int] = {"base": -10, "novel": 0, "joint HM": 10}
STEP = 20
"""Percent between two lines of the grid."""


@dataclass(frozen=True)
class Estimate:
    """A mean in percent with half the width of its interval in points; None without an interval."""

    mean: float
    half_width: float | None


@dataclass(frozen=True)
class Row:
    """A method and what is drawn of it."""

    method: str
    estimates: dict[Kind, Estimate]


def results_figure(rows: Sequence[Row], about: str) -> str:
    """The rows from top to bottom, on an axis from 0 to 100 percent. ``about`` is the text for readers who do
    not see the figure.
    """
    height = TOP + ROW * len(rows) + BOTTOM
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        f'font-family="system-ui, sans-serif" font-size="14" role="img" aria-label={quoteattr(about)}>',
        f"  <style>.t{{fill:{GREY}}}.s{{fill:{GREY};font-size:12px}}"
        f".g{{stroke:{GREY};stroke-opacity:.3}}.e{{stroke-width:2}}</style>",
    ]
    bottom = TOP + ROW * len(rows)
    for percent in range(0, 101, STEP):
        x = _x(percent)
        lines.append(f'  <path class="g" d="M{x} {TOP}V{bottom}"/>')
        lines.append(f'  <text class="s" x="{x}" y="{bottom + 18}" text-anchor="middle">{percent}%</text>')
    for index, kind in enumerate(get_args(Kind)):
        left = LEFT + 150 * index
        lines.append("  " + _mark(kind, f"{left + 6}", 18))
        lines.append(f'  <text class="t" x="{left + 18}" y="23">{escape(kind)}</text>')
    for index, row in enumerate(rows):
        middle = TOP + ROW * index + ROW // 2
        place = f'x="{LEFT - 12}" y="{middle + 5}" text-anchor="end"'
        lines.append(f'  <text class="t" {place}>{escape(row.method)}</text>')
        for kind, estimate in row.estimates.items():
            lines += _estimate(kind, estimate, middle + OFFSETS[kind])
    return "\n".join([*lines, "</svg>", ""])


def _x(percent: float) -> str:
    """The place on the axis, to a tenth of a pixel; values beyond it end at its ends."""
    share = min(max(percent, 0.0), 100.0) / 100
    return f"{LEFT + share * (WIDTH - LEFT - RIGHT):.1f}"


def _estimate(kind: Kind, estimate: Estimate, y: int) -> list[str]:
    lines = []
    if estimate.half_width is not None:
        low, high = _x(estimate.mean - estimate.half_width), _x(estimate.mean + estimate.half_width)
        lines.append(f'  <path class="e" stroke="{COLORS[kind]}" d="M{low} {y}H{high}"/>')
    return [*lines, "  " + _mark(kind, _x(estimate.mean), y)]


def _mark(kind: Kind, x: str, y: int) -> str:
    """Base has squares, novel has diamonds and joint HM circles, so that color is not needed."""
    color, across = COLORS[kind], float(x)
    match kind:
        case "base":
            return f'<rect x="{across - 4:.1f}" y="{y - 4}" width="8" height="8" fill="{color}"/>'
        case "novel":
            return f'<path d="M{across - 5.5:.1f} {y}l5.5 -5.5 5.5 5.5 -5.5 5.5z" fill="{color}"/>'
        case "joint HM":
            return f'<circle cx="{x}" cy="{y}" r="5" fill="{color}"/>'
