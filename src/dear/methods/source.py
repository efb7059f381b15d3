"""The source of a method outside the package, on which its runs depend: its module, and the modules beside it
that it imports.
"""

import ast
import hashlib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

INSTALLED = ("site-packages", "dist-packages")


def source_hash(module: ModuleType) -> str:
    """16 hexadecimal digits that change with the source: SHA-256 over the Python files, in order of their
    paths. "" for a module without a file, as in a notebook.

    A file is beside the module if it is in the folder that the module was found in, or below it; of what is
    installed, only if it is in the same package. Imports within functions count too, and a file that is
    imported by one of these.
    """
    if not (file := getattr(module, "__file__", None)) or not file.endswith(".py"):
        return ""
    names = module.__name__.split(".")
    path = Path(file).resolve()
    root = path.parents[len(names) - (path.name != "__init__.py")]
    below = root / names[0] if root.name in INSTALLED else root
    sources, left = dict[str, bytes](), [path]
    while left:
        path = left.pop()
        if (name := path.relative_to(root).as_posix()) not in sources:
            sources[name] = path.read_bytes()
            imported = _imported_files(sources[name], path, root)
            left += [found for found in imported if below in found.parents]
    digest = hashlib.sha256()
    for name, source in sorted(sources.items()):
        digest.update(f"{name}\0{len(source)}\0".encode() + source)
    return digest.hexdigest()[:16]


def _imported_files(source: bytes, path: Path, root: Path) -> Iterator[Path]:
    """The files below ``root`` that a module imports, with those of the packages around them."""
    try:
        tree = ast.parse(source)
    except SyntaxError:  # where it is imported, that will tell
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imported = [(root, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            start = path.parents[node.level - 1] if node.level else root
            prefix = f"{node.module}." if node.module else ""
            imported = [(start, f"{prefix}{alias.name}") for alias in node.names]  # a module or a name in one
        else:
            continue
        for folder, name in imported:
            for part in name.split("."):
                yield from filter(Path.is_file, (folder / "__init__.py", folder / f"{part}.py"))
                folder /= part
            yield from filter(Path.is_file, [folder / "__init__.py"])
