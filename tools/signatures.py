"""docs/api/signatures.md: the signatures of the names that the pages of docs/api describe, as the source has
them. The built site shows docstrings too; in a clone these pages have the names alone.
"""

import ast
import inspect
import re
import textwrap
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

PAGE = Path("docs/api/signatures.md")
NAME = re.compile(r"^::: (\S+)$", re.M)
HEADER = """# Signatures

This page is written by `make docs` from the source. Do not edit it.
It has the signatures of the [Python API](../api.md).
The built site (`make site`) and `help()` in Python also explain the arguments.

"""
WIDTH = 100


def signatures_page() -> str:
    """The page as Markdown: the names by the titles of their pages."""
    text = HEADER
    for page in sorted(PAGE.parent.glob("*.md")):
        content = page.read_text(encoding="utf-8")
        if names := NAME.findall(content):
            text += f"## {content.partition(chr(10))[0].lstrip('# ')}\n\n"
            text += "".join(describe(name) for name in names)
    return text.rstrip() + "\n"


def describe(name: str) -> str:
    """A name with its signature and the first sentence of its docstring."""
    value: Any = resolve_name(name)
    is_code = inspect.isclass(value) or inspect.isfunction(value)
    first = (inspect.getdoc(value) or "").partition("\n\n")[0].replace("\n", " ") if is_code else ""
    lines = [f"### {name}", ""]
    if is_code:
        lines += ["```py", signature(value, name.rpartition(".")[2]), "```", ""]
    return "\n".join([*lines, *([first, ""] if first else []), ""])


def signature(value: Any, name: str) -> str:
    """The signature as the source has it: of a class that of its constructor, or its fields."""
    [node] = ast.parse(textwrap.dedent(inspect.getsource(value))).body
    if isinstance(node, ast.FunctionDef):
        return call(name, node)
    assert isinstance(node, ast.ClassDef)
    constructor = [
        part for part in node.body if isinstance(part, ast.FunctionDef) and part.name == "__init__"
    ]
    if constructor:
        return call(name, constructor[0])
    parts = [ast.unparse(part) for part in node.body if isinstance(part, ast.AnnAssign)]
    return wrapped(name, [part for part in parts if not part.startswith("_")])


def call(name: str, node: ast.FunctionDef) -> str:
    """A function's parameters, without self, and what it returns."""
    arguments = node.args
    positional = [*arguments.posonlyargs, *arguments.args]
    defaults = [None] * (len(positional) - len(arguments.defaults)) + [*arguments.defaults]
    parts = [parameter(*pair) for pair in zip(positional, defaults, strict=True)]
    parts = parts[1:] if positional and positional[0].arg == "self" else parts
    if arguments.vararg:
        parts.append(f"*{parameter(arguments.vararg, None)}")
    elif arguments.kwonlyargs:
        parts.append("*")
    parts += [parameter(*pair) for pair in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)]
    if arguments.kwarg:
        parts.append(f"**{parameter(arguments.kwarg, None)}")
    returns = "" if node.returns is None or node.name == "__init__" else f" -> {ast.unparse(node.returns)}"
    return wrapped(name, parts, returns)


def parameter(argument: ast.arg, default: ast.expr | None) -> str:
    """A parameter with its type and its default."""
    text = ast.unparse(argument)
    return text if default is None else f"{text} = {ast.unparse(default)}"


def wrapped(name: str, parts: list[str], returns: str = "") -> str:
    """A call on one line if it is short, else with a line for each part."""
    line = f"{name}({', '.join(parts)}){returns}"
    if len(line) <= WIDTH:
        return line
    return "\n".join([f"{name}(", *(f"    {part}," for part in parts), f"){returns}"])
