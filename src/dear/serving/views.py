"""What the page shows, as HTML: classes with bars, neighbours, a picture. Pure; all names are escaped."""

import base64
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

from dear.retrieval.results import Hit
from dear.serving.predictor import Candidate

STYLE = Path(__file__).with_name("page.css")


def alert(message: str) -> str:
    """A message that is read out at once."""
    return f'<div class="dear"><p class="alert" role="alert">{escape(message)}</p></div>'


def note(message: str) -> str:
    return f'<div class="dear"><p role="status">{escape(message)}</p></div>' if message else ""


def bars(found: Sequence[Candidate]) -> str:
    """Classes with their probability; each opens to what every feature adds to its score, and how far that is
    ahead of the second class (for the first) or behind the first class (for the others).
    """
    longest = max((abs(value) for one in found for value in one.evidence.values()), default=0) or 1
    parts = []
    for rank, one in enumerate(found):
        other = found[0] if rank else found[1] if len(found) > 1 else None
        head = f"<th scope='col'>against {escape(other.name)}</th>" if other else ""
        rows = "".join(
            f"<tr><th scope='row'>{escape(name)}</th><td class='n'>{value:+.2f}</td>"
            f"<td class='wide'>{_bar(abs(value) / longest, against=value < 0)}</td>"
            + (f"<td class='n'>{value - other.evidence[name]:+.2f}</td>" if other else "")
            + "</tr>"
            for name, value in one.evidence.items()
        )
        parts.append(
            f"<details{' open' if rank == 0 else ''}><summary><span class='name'>{escape(one.name)}</span>"
            f"<span>{100 * one.probability:.1f} %</span>{_bar(one.probability)}</summary>"
            "<table><thead><tr><th scope='col'>feature</th><th scope='col'>adds</th><td></td>"
            f"{head}</tr></thead><tbody>{rows}</tbody></table></details>"
        )
    return f'<div class="dear" id="dear-bars">{"".join(parts)}</div>'


def tiles(hits: Sequence[Hit], thumbnails: Sequence[bytes | None]) -> str:
    """Neighbours with their pictures (PNG), the best first."""
    parts = []
    for hit, picture in zip(hits, thumbnails, strict=True):
        by = ", ".join(f"{name} {value:.2f}" for name, value in hit.by.items())
        caption = f"{hit.score:.3f} {hit.path}" + (f" ({by})" if len(hit.by) > 1 else "")
        shown = _picture(picture, hit.path) if picture else "<p>cannot be read any more</p>"
        parts.append(f"<figure>{shown}<figcaption>{escape(caption)}</figcaption></figure>")
    return f'<div class="dear"><div class="tiles" id="dear-neighbours">{"".join(parts)}</div></div>'


def look(picture: bytes, description: str) -> str:
    """A head's attention over the image (PNG)."""
    shown = f"{_picture(picture, description)}<figcaption>{escape(description)}</figcaption>"
    return f'<div class="dear"><figure class="look" id="dear-attention">{shown}</figure></div>'


def role_map(svg: str) -> str:
    return f'<div class="dear"><div class="map" tabindex="0" id="dear-roles">{svg}</div></div>'


def head_names(roles: Mapping[int, str], heads: int) -> list[tuple[str, int]]:
    """Choices of a layer's heads: number and, where it is known, the role."""
    return [(f"{head}: {roles[head]}" if head in roles else str(head), head) for head in range(heads)]


def _bar(share: float, *, against: bool = False) -> str:
    width = 100 * min(max(share, 0.0), 1.0)
    kind = ' class="against"' if against else ""
    return f'<span class="bar" aria-hidden="true"><span{kind} style="width: {width:.1f}%"></span></span>'


def _picture(png: bytes, description: str) -> str:
    return f'<img alt="{escape(description)}" src="data:image/png;base64,{base64.b64encode(png).decode()}">'
