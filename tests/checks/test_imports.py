"""No file imports itself by way of others, also within functions and for type checkers alone; import-linter
looks at whole packages.
"""

import ast
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src"


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__")


MODULES = {module_name(path): path for path in SOURCE.rglob("*.py")}


def imported(path: Path) -> Iterator[str]:
    """The modules of the package that a file imports anywhere."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path} has a relative import"
            submodules = [f"{node.module}.{alias.name}" for alias in node.names]
            names = [name if name in MODULES else str(node.module) for name in submodules]
        else:
            continue
        yield from (name for name in names if name in MODULES)


def test_no_circle_of_imports() -> None:
    """Raises CycleError with the files of a circle."""
    graph = {name: {*imported(path)} - {name} for name, path in MODULES.items()}
    assert sum(map(len, graph.values())) > 1000
    TopologicalSorter(graph).prepare()
