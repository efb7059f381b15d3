"""`dear methods`: the methods, with their papers, needs, protocols and settings."""

import ast
from collections.abc import Mapping
from dataclasses import fields
from importlib.util import find_spec
from pathlib import Path
from textwrap import fill
from typing import Any

from dear.cli.output import PrintableConsole
from dear.evaluation.protocols import PROTOCOLS
from dear.methods.declaration import Declaration
from dear.methods.registry import FIT_METHOD, METHODS

WIDTH = 80
HINT = f"""dear fit --method NAME --help says what its settings mean.
Start with {FIT_METHOD}, or let dear fit choose; docs/choose.md says more."""


def command() -> list[dict[str, Any]]:
    """List the methods: what each learns, its paper, what it needs, which protocols run it, and its settings.

    `dear fit --method NAME --help` says what the settings of one mean.
    """
    return [describe(method) for method in METHODS.values()]


def describe(method: Declaration) -> dict[str, Any]:
    """A method in words, without loading its code; ``arxiv`` is the number of its paper, or the year and
    month of one that is not on arXiv.
    """
    title, paper, about = _read_docstring(method.home)
    extras = {
        "Needs no training images.": not method.trains,
        "Needs a role table of the backbone.": method.roles == "required",
        "Takes the image feature as a whole where no role table is known.": method.roles == "optional",
        "Trains on unlabeled images of all classes.": method.unlabeled,
        f"Trains a teacher first, {method.teacher}.": method.teacher is not None,
        "Scores only the classes that it was trained on.": not method.open_vocabulary,
    }
    return {
        "name": method.name,
        "title": title or method.name,
        "paper": paper,
        "arxiv": method.arxiv,
        "about": about,
        "extra": [extra for extra, needed in extras.items() if needed],
        "protocols": [name for name, protocol in PROTOCOLS.items() if method.name in protocol().methods()],
        "settings": [f"--{method.folder}.{item.name}".replace("_", "-") for item in fields(method.settings)],
    }


def _read_docstring(home: str) -> tuple[str, str, str]:
    """Title, paper and what it does, from the first sentence of a method's module, "Title (paper): what it
    does"; it is read, not imported, since importing loads torch.
    """
    spec = find_spec(home)
    if spec is None or spec.origin is None:
        return "", "", ""
    text = ast.get_docstring(ast.parse(Path(spec.origin).read_text(encoding="utf-8"))) or ""
    sentence = " ".join(text.partition("\n\n")[0].split())
    before, colon, about = sentence.partition(": ")
    if not colon:
        return "", "", sentence
    title, _, paper = before.partition(" (")
    return title, paper.removesuffix(")"), about


def render(result: list[dict[str, Any]], console: PrintableConsole) -> None:
    """Show each method in a few lines of at most 80 columns."""
    console.say(*"\n\n".join([*map(_in_words, result), HINT]).splitlines())


def _in_words(method: Mapping[str, Any]) -> str:
    arxiv, about, settings = method["arxiv"], method["about"], method["settings"]
    number = f"arXiv {arxiv}" if "." in arxiv else f"not on arXiv, 20{arxiv[:2]}"
    paper = ", ".join(filter(None, [method["paper"], arxiv and number]))
    runs = "all" if len(method["protocols"]) == len(PROTOCOLS) else ", ".join(method["protocols"])
    lines = [_wrap(f"{method['name']}: {method['title']}" + (f" ({paper})" if paper else ""), 0)]
    lines += [_wrap(f"{about[:1].upper()}{about[1:]}")] if about else []
    lines += [_wrap(part) for part in [*method["extra"], f"Protocols: {runs or 'none'}."]]
    if settings:
        names = ", ".join(option.partition(".")[2] for option in settings)
        lines.append(_wrap(f"Settings {settings[0].partition('.')[0]}.*: {names}."))
    return "\n".join(lines)


def _wrap(text: str, indent: int = 4) -> str:
    return fill(text, WIDTH, initial_indent=" " * indent, subsequent_indent=" " * 4, break_on_hyphens=False)
