"""Code outside their homes knows no method and no protocol by name or class: what it asks is declared there.

A place that names one in spite of this is listed here, with the reason.
"""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from dear.evaluation.protocols import PROTOCOLS
from dear.methods.declaration import MethodSettings
from dear.methods.registry import METHODS


class Names(NamedTuple):
    """What counts as naming: whole strings, classes, modules with all below."""

    strings: frozenset[str]
    classes: frozenset[str]
    modules: tuple[str, ...]


SOURCE = Path(__file__).parents[2] / "src" / "dear"
ALLOWED = {
    # The package and the command are called dear too.
    "cli/main.py": "the command, in the line that a bundle has",
    "cli/info.py": "the package's name, beside its version",
    "evaluation/environment.py": "the package's name, beside its version",
    "adapters/export.py": "the package's name, beside its version",
    "serving/app.py": "the package's name, beside its version",
    # Rules of the few-shot pick are called dear and coop, after the code bases.
    "data/dataset.py": "a rule of the few-shot pick",
    "data/fewshot.py": "a rule of the few-shot pick",
    "data/settings.py": "a rule of the few-shot pick, and the folder of the package's cache",
    # So is a setting.
    "data/loading.py": "what to do with broken images",
    "data/scan.py": "what to do with broken images",
    # What belongs to one method.
    "evaluation/ablations.py": "the ablations of DeAR's paper, whose method is named there once",
    "curation/outliers.py": "the evidence of DeAR+, fitted beside any method",
    "roles/table.py": "a method without head roles, in a message",
    "adapters/facts.py": "the baseline, beside an accuracy",
}
METHOD_NAMES = Names(
    frozenset(METHODS),
    frozenset(one.implementation for one in METHODS.values())
    | {one.settings.__name__ for one in METHODS.values() if one.settings is not MethodSettings},
    tuple(f"dear.methods.{one.folder}" for one in METHODS.values()),
)

PROTOCOL_HOMES = ("evaluation/protocols", "report/protocols")
PROTOCOLS_ALLOWED = {
    "adapters/prepare.py": "an adapter is trained as in few-shot learning",
    "cli/world.py": "what the demo shows",
    "cli/run.py": "the ablations are in base-to-novel",
    "evaluation/recipe.py": "the ablations are in base-to-novel",
}
PROTOCOL_NAMES = Names(
    frozenset(PROTOCOLS),
    frozenset(one.__name__ for one in PROTOCOLS.values()),
    tuple({one.__module__ for one in PROTOCOLS.values()}),
)


@pytest.mark.parametrize(
    ("names", "homes", "allowed"),
    [(METHOD_NAMES, ("methods",), ALLOWED), (PROTOCOL_NAMES, PROTOCOL_HOMES, PROTOCOLS_ALLOWED)],
    ids=["methods", "protocols"],
)
def test_none_is_named_outside_its_home(
    names: Names, homes: tuple[str, ...], allowed: dict[str, str]
) -> None:
    found = {
        str(path.relative_to(SOURCE)): words
        for path in sorted(SOURCE.rglob("*.py"))
        if not any(SOURCE / home in path.parents for home in homes)
        and (words := {*named(path.read_text(encoding="utf-8"), names)})
    }
    extra = {path: words for path, words in found.items() if path not in allowed}
    assert not extra, f"these name what should declare what they ask: {extra}"
    assert found.keys() == allowed.keys(), "a place that names none any more leaves the list"


def named(code: str, names: Names = METHOD_NAMES) -> Iterator[str]:
    """Each of the names, in strings and in code; docstrings and comments may."""
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
            module = any(word == one or word.startswith(f"{one}.") for one in names.modules)
            string = isinstance(node, ast.Constant) and word in names.strings
            if word in names.classes or module or string:
                yield word


def test_no_test_module_imports_another() -> None:
    """What several share is in tests/helpers, or in a module beside them that has no tests."""
    for path in (SOURCE.parents[1] / "tests").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and str(node.module).startswith("tests."):
                names = [str(node.module), *(alias.name for alias in node.names)]
                assert not [name for name in names if name.rpartition(".")[2].startswith("test_")], path
