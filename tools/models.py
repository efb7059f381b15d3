"""Write docs/models.md, the table of open_clip's architectures: `python -m tools.models`."""

from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path

from dear.backbone.choice import Access, architectures
from dear.backbone.load import Verdict, try_architecture
from dear.methods.registry import methods_on

FILE = Path(__file__).parents[1] / "docs" / "models.md"
PAGE = """\
# Which backbones load

Written by `python -m tools.models`; do not edit.

Every architecture name of open_clip {version} was built (on PyTorch's meta device, without memory for
weights) and checked part by part against what the towers of `dear.backbone` reproduce:
**{works} of {count} work, {refused} are refused**, each with the reason that `load_clip` gives.

A tower gives its layers and attention heads, or features alone, and a method says what it needs of each.

{fits}

## Refused

| architecture | reason |
| --- | --- |
{others}
"""
SECTION = """\
## {title}

{about}
Number of architectures: {count}. Methods: {methods}.

| architecture | image tower: {columns} | M parameters |
| --- | --- | ---: |
{rows}"""
SECTIONS: dict[tuple[Access, Access], tuple[str, str]] = {
    ("heads", "layers"): ("Both towers by layers", "Layers and heads of images, layers of texts."),
    ("features", "layers"): (
        "Images as features, texts by layers",
        "The image tower is open_clip's or timm's own, frozen and used whole.",
    ),
    ("heads", "features"): (
        "Images by layers, texts as features",
        "The text tower is open_clip's own, frozen and used whole.",
    ),
    ("features", "features"): ("Features alone", "Both towers are open_clip's own, frozen and used whole."),
}
"""Title and description by what the image and the text tower give."""


def render_page(
    verdicts: Sequence[Verdict],
    open_clip_version: str,
    methods: Callable[[Access, Access], Sequence[str]],
) -> str:
    """The Markdown of docs/models.md. ``methods`` names those that run on an image and a text tower."""
    fits = [verdict for verdict in verdicts if verdict.works]
    others = [verdict for verdict in verdicts if not verdict.works]
    sections = []
    for access, (title, about) in SECTIONS.items():
        rows = [
            f"| {v.name} | {v.kind or f'{v.layers} x {v.heads}'}, {v.image_size} | {v.parameters or 0:.1f} |"
            for v in fits
            if (v.image, v.text) == access
        ]
        if rows:
            columns = "layers x heads, pixels" if access[0] == "heads" else "class, pixels"
            sections.append(
                SECTION.format(
                    title=title, about=about, count=len(rows), methods=", ".join(methods(*access)),
                    columns=columns, rows="\n".join(rows),
                )
            )  # fmt: skip
    return PAGE.format(
        version=open_clip_version, works=len(fits), count=len(verdicts), refused=len(others),
        fits="\n\n".join(sections), others="\n".join(f"| {v.name} | {v.reason} |" for v in others),
    )  # fmt: skip


if __name__ == "__main__":
    tried = [try_architecture(name) for name in architectures()]
    FILE.write_text(render_page(tried, version("open_clip_torch"), methods_on), encoding="utf-8")
