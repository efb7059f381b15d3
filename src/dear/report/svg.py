"""From a matplotlib figure to an SVG for a page: same bytes each time, text in the page's own colour."""

import html
import io
import re
from collections.abc import Callable
from typing import Any

from markupsafe import Markup
from matplotlib import style
from matplotlib.figure import Figure

# Drawn with this colour, written as currentColor: it turns light where the page is dark.
INK = "#010203"
PAGE_FONT = "system-ui, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"
# A wide figure shrinks to this share of its size; then it scrolls, or its text could not be read.
SMALLEST = 0.65
_NAMESPACE = ' xmlns="http://www.w3.org/2000/svg"'

_STYLE: dict[str, Any] = {
    "font.size": 10,
    "svg.fonttype": "none",
    # A dollar sign in a class name is no mathematics.
    "text.parse_math": False,
    "text.color": INK,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "legend.frameon": False,
}


def draw(name: str, description: str, size: tuple[float, float], paint: Callable[[Figure], None]) -> str:
    """An SVG of the given size (width, height in inches).

    Args:
        name: prefix of its ids, so that several can stand in one page.
        description: what it shows, for those who do not see it.
        size: width and height in inches.
        paint: draws into the empty figure.
    """
    with style.context(["default", {**_STYLE, "svg.hashsalt": name}]):
        figure = Figure(figsize=size, layout="constrained")
        paint(figure)
        stream = io.StringIO()
        nothing = {"Date": None, "Creator": None, "Format": None, "Type": None}
        figure.savefig(stream, format="svg", transparent=True, metadata=nothing)
    return _for_page(stream.getvalue(), name, description, size[0])


def _for_page(text: str, name: str, description: str, width: float) -> str:
    """Drop what only a file of its own needs, make ids unique, let colour and font follow the page."""
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
    """An SVG of `draw`, which escapes all text; inside HTML it needs no namespace."""
    return Markup(svg.replace(_NAMESPACE, "", 1))
