"""A fixed sample of small faults (mutants) in core code, and how many of them the tests notice.

    python -m tools.mutants RESULT.json   makes each fault in a copy of the tree and runs the tests near it

A mutant of mutants.json names a function, a line of it, the text of an expression or statement in that line
(`old`, and which of several, `nth`) and what stands there instead (`new`). Where code was renamed or moved
since, the function is looked for in other files and the line by its form without names. Mutants that are not
found are counted as lost: give them their new function or line in mutants.json by hand.
"""

import ast
import json
import keyword
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Queue
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
SAMPLE = Path(__file__).with_name("mutants.json")
SECONDS = 600
"""After which tests count as hanging, and the mutant as killed."""
PROCESSES = 2
TESTS = {
    "mask": "unit/roles/test_mask unit/backbone/test_attention unit/methods/test_dear",
    "losses": "unit/methods/test_dear unit/methods/test_dear_options unit/methods/test_peers "
    "parity/test_public",
    "injection": "unit/backbone/test_towers parity/test_public parity/test_naive",
    "training loop": "unit/training/test_loop unit/training/test_options unit/training/test_trunks",
    "splits": "unit/data/test_fewshot unit/data/test_own",
    "metrics": "unit/evaluation/test_metrics unit/evaluation/test_predictions unit/adapters/test_scoring",
    "TEXTSPAN": "unit/roles/test_textspan unit/roles/test_entropy",
    "bundle": "unit/adapters/test_bundle unit/adapters/test_fit",
}
"""The files below tests/ that guard the code of a theme."""
NAME = re.compile(r"[^\W\d]\w*")


def mutate(mutant: dict[str, Any], source: Path) -> tuple[Path, str] | None:
    """The file below ``source`` that a mutant changes and its new content; None if its place is lost."""
    for path in [source / mutant["file"], *sorted(source.rglob("*.py"))]:
        if not path.exists():
            continue
        tree = ast.parse(path.read_text())
        function = dict(_functions(tree)).get(mutant["function"])
        for form in (str, _without_names) if function else ():
            places = [
                (holder, field, index, node)
                for holder, field, index, line, node in _nodes(function, "")
                if form(line) == form(mutant["line"]) and form(ast.unparse(node)) == form(mutant["old"])
            ]
            if len(places) > mutant["nth"]:
                holder, field, index, node = places[mutant["nth"]]
                then, now = (NAME.findall(_code(text)) for text in (mutant["old"], ast.unparse(node)))
                renamed = dict(zip(then, now, strict=True))
                new = ast.parse(
                    NAME.sub(lambda at, renamed=renamed: renamed.get(at[0], at[0]), mutant["new"])
                )
                changed = new.body[0].value if isinstance(node, ast.expr) else new.body[0]
                if index is None:
                    setattr(holder, field, changed)
                else:
                    getattr(holder, field)[index] = changed
                return path, ast.unparse(ast.fix_missing_locations(tree)) + "\n"
    return None


def _functions(tree: ast.Module) -> Iterator[tuple[str, ast.FunctionDef]]:
    """Functions and methods of a module by qualified name."""
    for node in tree.body:
        for part in node.body if isinstance(node, ast.ClassDef) else [node]:
            if isinstance(part, ast.FunctionDef):
                yield f"{node.name}.{part.name}" if part is not node else node.name, part


def _nodes(holder: ast.AST, line: str) -> Iterator[tuple[ast.AST, str, int | None, str, ast.AST]]:
    """Statements and expressions in a function, each with its place and the first line of its statement."""
    for field, value in ast.iter_fields(holder):
        for index, node in enumerate(value if isinstance(value, list) else [value]):
            if isinstance(node, ast.AST):
                inner = ast.unparse(node).splitlines()[0] if isinstance(node, ast.stmt) else line
                if isinstance(node, ast.stmt | ast.expr):
                    yield holder, field, index if isinstance(value, list) else None, inner, node
                yield from _nodes(node, inner)


def _code(text: str) -> str:
    """A text of code without the words in its strings."""
    return re.sub(r"'[^']*'|\"[^\"]*\"", "''", text)


def _without_names(text: str) -> str:
    return NAME.sub(lambda name: name[0] if keyword.iskeyword(name[0]) else "_", _code(text))


def _copy(folder: Path) -> Path:
    for part in ("src", "tests", "recipes"):
        shutil.copytree(ROOT / part, folder / part, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", folder)
    return folder


def _test(mutant: dict[str, Any], copies: "Queue[Path]") -> str:
    """How a mutant ends: killed (by a failed test or a hang), survived or lost; without a file, unchanged."""
    copy = copies.get()
    try:
        changed = mutate(mutant, copy / "src/dear") if "file" in mutant else (copy / "pyproject.toml", "")
        if changed is None:
            return "lost"
        path, content = changed
        before = path.read_text()
        path.write_text(content or before)
        tests = [f"tests/{name}.py" for name in TESTS[mutant["theme"]].split()]
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-n", "0", "-p", "no:cacheprovider", *tests]
        environment = os.environ | {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "PYTHONPATH": "src"}
        environment["PYTHONDONTWRITEBYTECODE"] = "1"  # a changed file may have the old one's time and size
        try:
            run = subprocess.run(command, cwd=copy, env=environment, capture_output=True, timeout=SECONDS)
            return "killed" if run.returncode else "survived"
        except subprocess.TimeoutExpired:
            return "killed"
        finally:
            path.write_text(before)
    finally:
        copies.put(copy)


def main(result: Path) -> None:
    """Try every mutant; write how many were killed, and which survived or are lost."""
    sample = json.loads(SAMPLE.read_text())
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(PROCESSES) as pool:
        copies: Queue[Path] = Queue()
        for number in range(PROCESSES):
            copies.put(_copy(Path(folder, str(number))))
        unchanged = dict(
            zip(TESTS, pool.map(lambda theme: _test({"theme": theme}, copies), TESTS), strict=True)
        )
        if failing := [theme for theme, ending in unchanged.items() if ending != "survived"]:
            sys.exit(f"these tests fail without a mutant: {', '.join(failing)}")
        found: dict[str, list[str]] = {"killed": [], "survived": [], "lost": []}
        for mutant, ending in zip(sample, pool.map(lambda one: _test(one, copies), sample), strict=True):
            name = f"{mutant['file']} {mutant['function']}: {mutant['old']} -> {mutant['new']}"
            found[ending].append(name)
            print(f"{ending:8} {name[:120]}", file=sys.stderr)
    result.write_text(json.dumps(found, indent=1) + "\n")
    print({ending: len(names) for ending, names in found.items()})


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(Path(sys.argv[1]))
