"""Code outside methods/ knows no method by name or class: what it asks is declared by the method.

A place that names one in spite of this is listed here, with the reason.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

from dear.methods.registry import METHODS

SOURCE = Path(__file__).parents[2] / "src" / "dear"
ALLOWED = {
    # The package and the command are called dear too.
    "cli/document.py": "the command's name",
    "cli/info.py": "the package's name, beside its version",
    "evaluation/records.py": "the package's name, beside its version",
    "adapters/export.py": "the package's name, beside its version",
    # Rules of the few-shot pick are called dear and coop, after the code bases.
    "data/dataset.py": "a rule of the few-shot pick",
    "data/fewshot.py": "a rule of the few-shot pick",
    "data/settings.py": "a rule of the few-shot pick, and the folder of the package's cache",
    # What belongs to one method.
    "__init__.py": "the public names",
    "cli/run_retrieval.py": "a figure of DeAR's paper: its options are those of DeAR",
    "evaluation/ablations.py": "the ablations of DeAR's paper, whose method is named there once",
}
CLASSES = {one.implementation for one in METHODS.values()} | {
    one.settings.__name__ for one in METHODS.values() if one.settings.__module__ != "dear.methods.declaration"
}
FOLDERS = tuple(f"dear.methods.{one.folder}" for one in METHODS.values())


def test_no_method_is_named_outside_its_home() -> None:
    found = {
        str(path.relative_to(SOURCE)): words
        for path in sorted(SOURCE.rglob("*.py"))
        if SOURCE / "methods" not in path.parents and (words := {*named(path.read_text(encoding="utf-8"))})
    }
    extra = {path: words for path, words in found.items() if path not in ALLOWED}
    assert not extra, f"these name a method, which should declare what they ask: {extra}"
    assert found.keys() == ALLOWED.keys(), "a place that names no method any more leaves the list"


def test_what_counts_as_naming() -> None:
    assert [*named('"""coop"""\nif plan.method == "zero-shot":\n    pass')] == ["zero-shot"]
    assert [*named('def f(method: str = "dear") -> None:\n    "dear"')] == ["dear"]
    assert [*named("isinstance(one, methods.Dear)")] == ["Dear"]
    assert {*named("from dear.methods.coop.settings import CoOpSettings as C")} == {
        "dear.methods.coop.settings",
        "CoOpSettings",
    }
    assert [*named("from dear.methods.base import Method\nx = 'dear run'")] == []


def named(code: str) -> Iterator[str]:
    """Each name of a method, of its class or settings, or of its modules; docstrings and comments may."""
    tree = ast.parse(code)
    docstrings = {id(one.value) for one in ast.walk(tree) if isinstance(one, ast.Expr)}
    for node in ast.walk(tree):
        words: list[str] = []
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            words = [node.value]
        elif isinstance(node, ast.Name):
            words = [node.id]
        elif isinstance(node, ast.Attribute):
            words = [node.attr]
        elif isinstance(node, ast.Import | ast.ImportFrom):
            words = [one.name for one in node.names]
            words += [node.module] if isinstance(node, ast.ImportFrom) and node.module else []
        for word in words:
            module = any(word == folder or word.startswith(f"{folder}.") for folder in FOLDERS)
            string = isinstance(node, ast.Constant) and word in METHODS
            if word in CLASSES or module or string:
                yield word
