"""Convert a matplotlib figure to an SVG for a page: deterministic bytes, text in the page's own colour; and
to files of its own, for a paper.
"""

import html
import io
import re
from collections.abc import Callable, Sequence
from typing import Any

from markupsafe import Markup
from matplotlib import style
from matplotlib.figure import Figure

# Drawn in this colour and written as currentColor: it turns light on a dark page.
INK = "#010203"
PAGE_FONT = "system-ui, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"
# A wide figure shrinks to at most this share of its size, then scrolls; smaller text would be illegible.
SMALLEST = 0.65
DPI = 200
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


Rows = Sequence[Sequence[object]]
"""The numbers of a figure, the names of its columns first."""


class Drawing(str):
    """The SVG of a figure for a page, which can also be written as files of its own.

    Attributes:
        name: Prefix of its ids; the base name of its files.
        description: What it shows, for readers who cannot see it.
        data: Its numbers; empty if a table of the report has them.
    """

    name: str
    description: str
    data: Rows
    _size: tuple[float, float]
    _paint: Callable[[Figure], None]

    def alone(self) -> str:
        """The SVG as a file: black on white, whatever shows it."""
        return self.replace('style="', 'style="color: #000; background: #fff; ', 1)

    def png(self) -> bytes:
        """The figure in black on white, at 200 dots per inch."""
        stream = io.BytesIO()
        with style.context(["default", _STYLE]):
            figure = Figure(figsize=self._size, layout="constrained")
            self._paint(figure)
            figure.savefig(stream, format="png", dpi=DPI, facecolor="white", metadata={"Software": None})
        return stream.getvalue()


def draw(
    name: str,
    description: str,
    size: tuple[float, float],
    paint: Callable[[Figure], None],
    data: Rows = (),
) -> Drawing:
    """An SVG of the given size (width, height in inches).

    Args:
        name: Prefix of its ids, so that several figures can be in one page.
        description: What it shows, for readers who cannot see it.
        size: Width and height in inches.
        paint: Draws into the empty figure.
        data: The numbers shown, for a file beside the figure's.
    """
    with style.context(["default", {**_STYLE, "svg.hashsalt": name}]):
        figure = Figure(figsize=size, layout="constrained")
        paint(figure)
        stream = io.StringIO()
        nothing = {"Date": None, "Creator": None, "Format": None, "Type": None}
        figure.savefig(stream, format="svg", transparent=True, metadata=nothing)
    drawing = Drawing(_for_page(stream.getvalue(), name, description, size[0]))
    drawing.name, drawing.description, drawing.data = name, description, data
    drawing._size, drawing._paint = size, paint
    return drawing


def _for_page(text: str, name: str, description: str, width: float) -> str:
    """Remove what only a standalone file needs, make ids unique, let colour and font follow the page."""
    text = re.sub(r"<!--.*?-->\s*", "", text[text.index("<svg") :], flags=re.DOTALL)
    text = re.sub(r"<defs>\s*<style[^>]*>.*?</style>\s*</defs>\s*", "", text, count=1, flags=re.DOTALL)
    text = re.sub(r"<metadata>.*?</metadata>\s*", "", text, count=1, flags=re.DOTALL)
    text = text.replace(' xmlns:xlink="http://www.w3.org/1999/xlink"', "").replace("xlink:href=", "href=")
    named = re.compile(r'( id="| href="#|url\(#)')
    text = re.sub(r"<[^>]*>", lambda tag: named.sub(rf"\g<1>{name}-", tag[0]), text)
    text = text.replace(INK, "currentColor")
    text = re.sub(r"(font: [^'\";]*?px) [^;\"]*", rf"\1 {PAGE_FONT}", text)
    look = f"max-width: 100%; min-width: {width * SMALLEST:.2f}in; height: auto; stroke-linejoin: round"
    label = html.escape(description, quote=True)
    return text.replace("<svg", f'<svg role="img" aria-label="{label}" style="{look}"', 1).strip() + "\n"


def inline(svg: str) -> Markup:
    """Mark an SVG of `draw` as safe, since `draw` escapes all text; inside HTML it needs no namespace."""
    return Markup(svg.replace(_NAMESPACE, "", 1))
