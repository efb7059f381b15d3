"""`dear methods`: the methods, with their papers, needs, protocols and settings."""

import ast
from collections.abc import Mapping
from dataclasses import fields
from importlib.util import find_spec
from inspect import cleandoc
from pathlib import Path
from textwrap import fill
from typing import Any, Literal, get_args, get_origin, get_type_hints

from docstring_parser import DocstringStyle, parse

from dear.cli.output import PrintableConsole
from dear.cli.parsing import list_other_defaults
from dear.evaluation.protocols import PROTOCOLS
from dear.methods.declaration import ANY, Declaration
from dear.methods.registry import FIT_METHOD, METHODS, known_method

WIDTH = 80
HINT = f"""dear methods --methods NAME says what its settings mean.
Start with {FIT_METHOD}, or let dear fit choose; docs/choose.md says more."""


def command(*, methods: list[str] | None = None) -> dict[str, Any]:
    """List the methods: what each learns, its paper, what it needs, which protocols run it, and its settings.

    Args:
        methods: Show only these, and say what their settings mean.
    """
    names = dict.fromkeys(map(known_method, methods or METHODS))
    return {"methods": [describe(METHODS[name]) for name in names], "details": methods is not None}


def describe(method: Declaration) -> dict[str, Any]:
    """A method in words, without loading its code; ``arxiv`` is the number of its paper, or the year and
    month of one that is not on arXiv.
    """
    title, paper, about = _read_docstring(method.home)
    extras = {
        "Needs no training images.": not method.trains,
        "Needs a role table of the backbone.": method.needs_roles and not method.without_roles,
        "Takes the image feature as a whole where no role table is known.": method.without_roles,
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
        "settings": _settings(method),
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


def _settings(method: Declaration) -> list[dict[str, Any]]:
    """Each setting: its option, default and allowed values, and which runs have another default."""
    kind = method.settings
    hints, described = get_type_hints(kind), descriptions(kind)
    settings = []
    for name, default in ((item.name, item.default) for item in fields(kind)):
        hint = hints[name]
        allowed = kind.bounds.get(name, ANY)[0]
        if get_origin(hint) is Literal:
            allowed = f"one of {', '.join(map(str, get_args(hint)))}"
        settings.append(
            {
                "option": f"--{method.folder}.{name}".replace("_", "-"),
                "type": str(getattr(hint, "__name__", hint)).replace("typing.", ""),
                "default": default,
                "other_defaults": list_other_defaults(kind, name),
                "allowed": allowed,
                "about": described.get(name, ""),
            }
        )
    return settings


def descriptions(kind: type) -> dict[str, str]:
    """The description of each field, from the docstrings of a class and its bases."""
    docs = [part.__doc__ or "" for part in reversed(kind.__mro__)]
    parameters = [entry for doc in docs for entry in parse(cleandoc(doc), DocstringStyle.GOOGLE).params]
    return {entry.arg_name: " ".join((entry.description or "").split()) for entry in parameters}


def render(result: dict[str, Any], console: PrintableConsole) -> None:
    """Show each method in a few lines of at most 80 columns."""
    parts = [_in_words(method, result["details"]) for method in result["methods"]]
    console.say(*"\n\n".join(parts if result["details"] else [*parts, HINT]).splitlines())


def _in_words(method: Mapping[str, Any], details: bool) -> str:
    arxiv, about, settings = method["arxiv"], method["about"], method["settings"]
    number = f"arXiv {arxiv}" if "." in arxiv else f"not on arXiv, 20{arxiv[:2]}"
    paper = ", ".join(filter(None, [method["paper"], arxiv and number]))
    runs = "all" if len(method["protocols"]) == len(PROTOCOLS) else ", ".join(method["protocols"])
    lines = [_wrap(f"{method['name']}: {method['title']}" + (f" ({paper})" if paper else ""), 0)]
    lines += [_wrap(f"{about[:1].upper()}{about[1:]}")] if about else []
    lines += [_wrap(part) for part in [*method["extra"], f"Protocols: {runs or 'none'}."]]
    if settings and not details:
        options = [setting["option"].partition(".") for setting in settings]
        lines.append(_wrap(f"Settings {options[0][0]}.*: {', '.join(name for *_, name in options)}."))
    for setting in settings if details else ():
        notes = [f"default {_plain(setting['default'])}"]
        notes += [f"{_plain(value)} {scope}" for value, scope in setting["other_defaults"]]
        notes += [setting["allowed"]] if setting["allowed"] else []
        lines += [_wrap(f"{setting['option']} ({'; '.join(notes)})"), _wrap(setting["about"], 8)]
    return "\n".join(lines)


def _plain(value: Any) -> str:
    """A value as a person would type it."""
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    return f'"{value}"' if isinstance(value, str) and (not value or " " in value) else str(value)


def _wrap(text: str, indent: int = 4) -> str:
    after = " " * max(indent, 4)
    return fill(text, WIDTH, initial_indent=" " * indent, subsequent_indent=after, break_on_hyphens=False)
