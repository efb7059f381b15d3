"""The public API: what docs and examples import is documented, and there."""

import ast
import json
import re
from importlib import import_module
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


DOCUMENTED = {
    name
    for page in PAGES
    for name in re.findall(r"^::: dear\.([\w.]+)$", page.read_text(encoding="utf-8"), re.M)
}
"""The names with a signature on a page, those beyond the front door with their module."""


@pytest.mark.parametrize("place", sources())
def test_docs_and_examples_use_only_documented_names(place: str) -> None:
    for node in ast.walk(ast.parse(sources()[place])):
        if isinstance(node, ast.ImportFrom) and str(node.module).split(".")[0] == "dear":
            module = str(node.module).removeprefix("dear").removeprefix(".")
            names = {f"{module}.{alias.name}".removeprefix(".") for alias in node.names}
            assert node.module in SUBMODULES or names <= DOCUMENTED, f"{place}: {names - DOCUMENTED}"
        elif isinstance(node, ast.Import):
            assert not [alias.name for alias in node.names if alias.name.startswith("dear.")]
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "dear":
            assert node.attr in dear.__all__, f"{place}: dear.{node.attr}"


def test_every_public_name_is_documented_and_there() -> None:
    names = re.findall(r"^\| `dear\.(\w+)` \|", PAGE, re.M)
    assert sorted(names) == sorted(dear.__all__)
    for name in DOCUMENTED:
        module, _, last = name.rpartition(".")
        assert hasattr(import_module(f"dear.{module}".removesuffix(".")), last), name
