"""The public API: what docs and examples import, named in one place."""

import ast
import json
import re
from pathlib import Path

import pytest

import dear

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/api.md").read_text(encoding="utf-8")
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
SUBMODULES = {*re.findall(r"`(dear\.methods\.\w+)`", PAGE)}
"""For authors of methods, named at the end of the page."""


def sources() -> dict[str, str]:
    """Every piece of Python that a user may copy, by where it is."""
    found = {path.name: path.read_text(encoding="utf-8") for path in sorted((ROOT / "examples").glob("*.py"))}
    for path in sorted((ROOT / "examples").glob("*.ipynb")):
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        found[path.name] = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    for path in PAGES:
        blocks = re.findall(r"^( *)```python\n(.*?)^ *```", path.read_text(encoding="utf-8"), re.M | re.S)
        for number, (indent, block) in enumerate(blocks):
            text = "\n".join(line.removeprefix(indent) for line in block.splitlines())
            found[f"{path.relative_to(ROOT)} {number}"] = text
    return found


def test_there_is_something_to_look_at() -> None:
    assert len(sources()) > 12


@pytest.mark.parametrize("place", sources())
def test_docs_and_examples_use_only_public_names(place: str) -> None:
    for node in ast.walk(ast.parse(sources()[place])):
        if isinstance(node, ast.ImportFrom) and str(node.module).split(".")[0] == "dear":
            assert node.module == "dear" or node.module in SUBMODULES, f"{place}: {node.module}"
            if node.module == "dear":
                assert {alias.name for alias in node.names} <= {*dear.__all__}
        elif isinstance(node, ast.Import):
            assert not [alias.name for alias in node.names if alias.name.startswith("dear.")]
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "dear":
            assert node.attr in dear.__all__, f"{place}: dear.{node.attr}"


def test_every_public_name_is_documented() -> None:
    assert re.findall(r"^\| `dear\.(\w+)` \|", PAGE, re.M) == sorted(dear.__all__, key=str.lower)


def test_what_type_checkers_see_is_what_there_is() -> None:
    tree = ast.parse(Path(dear.__file__).read_text(encoding="utf-8"))
    (guarded,) = (node for node in tree.body if isinstance(node, ast.If))
    told = {
        alias.asname: node.module
        for node in guarded.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert told == dear._HOME
