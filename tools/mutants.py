"""A fixed sample of small faults (mutants) in core code, and how many of them the tests notice.

    python -m tools.mutants draw              draws the sample anew into tools/mutants.json
    python -m tools.mutants run RESULT.json   makes each fault in a copy of the tree and runs tests near it

A mutant names a function, a kind of change, a line of the function and which of the places in that line
where the change applies, with the text before and after. Where code was renamed or moved since, `run` looks
for the function in other files and for the line by its form without names. Mutants that it does not find are
counted as lost: give them their new function or line in mutants.json by hand.
"""

import argparse
import ast
import contextlib
import json
import keyword
import os
import random
import re
import resource
import shutil
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tools.changes import CHANGES, Change, condition

ROOT = Path(__file__).resolve().parents[1]
SAMPLE = Path(__file__).with_name("mutants.json")
SEED, COUNT = "core", 100
CPU_SECONDS = 60
"""After which a run of tests counts as hanging, and the mutant as killed."""
PROCESSES = 2
WRONG_TREE = 70
"""Exit code of tests that did not run on the changed copy, or did not run at all."""

THEMES: dict[str, tuple[list[str], list[str]]] = {
    "mask": (
        ["roles/mask.py", "backbone/attention.py"],
        ["unit/roles/test_mask.py", "unit/backbone/test_attention.py", "unit/methods/test_dear.py"],
    ),
    "losses": (
        ["methods/dear/method.py", "methods/promptsrc/method.py", "methods/shared.py"],
        [
            "unit/methods/test_dear.py", "unit/methods/test_dear_options.py", "unit/methods/test_peers.py",
            "parity/test_public.py",
        ],
    ),
    "injection": (
        ["backbone/injection.py"],
        ["unit/backbone/test_towers.py", "parity/test_public.py", "parity/test_naive.py"],
    ),
    "training loop": (
        ["training/loop.py", "training/settings.py", "training/batches.py"],
        ["unit/training/test_loop.py", "unit/training/test_options.py", "unit/training/test_trunks.py"],
    ),
    "splits": (
        ["data/fewshot.py", "data/sources/splits.py"],
        ["unit/data/test_fewshot.py", "unit/data/test_own.py"],
    ),
    "metrics": (
        ["evaluation/metrics.py", "evaluation/mistakes.py", "evaluation/predictions.py"],
        [
            "unit/evaluation/test_metrics.py", "unit/evaluation/test_mistakes.py",
            "unit/adapters/test_scoring.py",
        ],
    ),
    "TEXTSPAN": (
        ["roles/textspan.py", "roles/entropy.py"],
        ["unit/roles/test_textspan.py", "unit/roles/test_entropy.py"],
    ),
    "bundle": (
        ["adapters/bundle.py", "adapters/bundle_config.py"],
        ["unit/adapters/test_bundle.py", "unit/adapters/test_fit.py"],
    ),
}  # fmt: skip
"""Files below src/dear from which mutants are drawn, and the files below tests that guard them, by theme."""

GOING = ("gate", "soft_", "defaults_of_old")
"""In lines that are going to be removed."""
# Not drawn: what is going to be removed, timings, GPUs, several processes, the network.
LEFT_OUT = (
    "soft", "gate", "perf_counter", "world_size", "fabric", "pin_memory", "cuda", "push_to_hub", "upload",
    "download", "PretrainSettings", "1e-300", "strict", "precision", "alpha_of", "evidence",
    "_with_frozen", "zip(", "fusion_weights", "typed(", "l1_loss(", "transpose(", "min(", "max(",
    "isinstance(", "getattr(", "round(", "warn_of_toy",
)  # fmt: skip


def functions(tree: ast.Module) -> Iterator[tuple[str, ast.FunctionDef]]:
    """Functions and methods of a module by qualified name; what is nested in one belongs to it."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            yield node.name, node
        elif isinstance(node, ast.ClassDef):
            yield from (
                (f"{node.name}.{part.name}", part) for part in node.body if isinstance(part, ast.FunctionDef)
            )


@dataclass(frozen=True)
class Place:
    """Where a change applies: a node, its holder, the first line of its statement, and the changed node."""

    holder: ast.AST
    field: str
    index: int | None
    line: str
    node: ast.AST
    changed: ast.AST

    def apply(self) -> None:
        if self.index is None:
            setattr(self.holder, self.field, self.changed)
        else:
            getattr(self.holder, self.field)[self.index] = self.changed


def places(function: ast.AST, change: Change) -> Iterator[Place]:
    """All places of a change in a function, in the order of the text; not in messages and annotations."""
    for holder, field, index, line, node in _below(function, ""):
        if change is not condition or field == "test":
            changed = change(deepcopy(node))
            if changed is not None:
                yield Place(holder, field, index, line, node, changed)


def _below(holder: ast.AST, line: str) -> Iterator[tuple[ast.AST, str, int | None, str, ast.AST]]:
    for field, value in ast.iter_fields(holder):
        unchecked = isinstance(holder, ast.keyword) and holder.arg in ("strict", "persistent", "indent")
        if field in ("annotation", "returns", "decorator_list", "type_comment") or unchecked:
            continue
        for index, node in enumerate(value if isinstance(value, list) else [value]):
            if isinstance(node, ast.AST):
                inner = ast.unparse(node).splitlines()[0] if isinstance(node, ast.stmt) else line
                yield holder, field, index if isinstance(value, list) else None, inner, node
                if not isinstance(node, ast.Raise | ast.JoinedStr | ast.Assert):
                    yield from _below(node, inner)


def draw() -> list[dict[str, Any]]:
    """As many mutants of each theme, as far as it has them, and in a theme as many of each change."""
    generator = random.Random(SEED)
    by_theme = {theme: _candidates(theme, files) for theme, (files, _) in THEMES.items()}
    for candidates in by_theme.values():
        generator.shuffle(candidates)
        seen = Counter[str]()
        rank = {}
        for mutant in candidates:  # changes take turns, so that the frequent ones do not crowd out the others
            rank[id(mutant)] = seen[mutant["change"]]
            seen[mutant["change"]] += 1
        candidates.sort(key=lambda mutant: rank[id(mutant)])
    sample: list[dict[str, Any]] = []
    while len(sample) < COUNT:
        for candidates in by_theme.values():
            if candidates and len(sample) < COUNT:
                sample.append(candidates.pop(0))
    return sorted(sample, key=lambda mutant: [*THEMES].index(mutant["theme"]))


def _candidates(theme: str, files: list[str]) -> list[dict[str, Any]]:
    mutants = []
    for file in files:
        for name, function in functions(ast.parse((ROOT / "src/dear" / file).read_text())):
            for change in CHANGES:
                lines = Counter[str]()
                for place in places(function, CHANGES[change]):
                    ordinal, old = lines[place.line], ast.unparse(place.node)
                    lines[place.line] += 1
                    left_out = any(word in f"{name} {old}" for word in LEFT_OUT)
                    if not left_out and not any(word in place.line for word in GOING):
                        mutants.append({
                            "theme": theme, "file": file, "function": name, "change": change,
                            "line": place.line, "ordinal": ordinal,
                            "old": old, "new": ast.unparse(place.changed),
                        })  # fmt: skip
    return mutants


def mutate(mutant: dict[str, Any], source: Path) -> tuple[Path, str] | None:
    """The file below `source` that a mutant changes and its new content; None if its place is lost."""
    first = source / mutant["file"]
    for path in [first, *sorted(source.rglob("*.py"))]:
        if not path.exists():
            continue
        tree = ast.parse(path.read_text())
        function = dict(functions(tree)).get(mutant["function"])
        if function is None:
            continue
        place = _place_of(mutant, [*places(function, CHANGES[mutant["change"]])])
        if place is not None:
            place.apply()
            return path, ast.unparse(ast.fix_missing_locations(tree)) + "\n"
    return None


def _place_of(mutant: dict[str, Any], here: list[Place]) -> Place | None:
    """The place at the mutant's ordinal in a line with the same text or, failing that, of the same form."""
    for form in (str, without_names):
        in_line = [place for place in here if form(place.line) == form(mutant["line"])]
        for place in in_line[mutant["ordinal"] : mutant["ordinal"] + 1]:
            if form(ast.unparse(place.node)) == form(mutant["old"]):
                return place
    return None


def without_names(text: str) -> str:
    """A text of code with _ for every name, and without the words in its strings."""
    bare = re.sub(r"'[^']*'|\"[^\"]*\"", "''", text)
    return re.sub(r"[^\W\d]\w*", lambda name: name[0] if keyword.iskeyword(name[0]) else "_", bare)


def run(result: Path) -> None:
    """Try every mutant; write how many were killed, and which survived."""
    sample = json.loads(SAMPLE.read_text())
    _warm_up()
    with tempfile.TemporaryDirectory() as folder:
        copies = [_copy(Path(folder, str(number))) for number in range(PROCESSES)]
        clean = _all([{"theme": theme, "name": f"{theme}, unchanged"} for theme in THEMES], copies)
        if failing := [one["name"] for one in clean if one["ending"] != "survived"]:
            sys.exit(f"these tests fail without a mutant: {', '.join(failing)}")
        outcomes = _all([mutant | {"name": _name(mutant)} for mutant in sample], copies)
    endings = {
        ending: [outcome["name"] for outcome in outcomes if outcome["ending"] == ending]
        for ending in ("killed", "survived", "lost")
    }
    summary = {
        **{ending: len(names) for ending, names in endings.items()},
        "cpu_seconds": round(sum(outcome["cpu_seconds"] for outcome in clean + outcomes)),
        "survivors": endings["survived"],
        "not_found": endings["lost"],
    }
    result.write_text(json.dumps(summary | {"mutants": outcomes}, indent=1) + "\n")
    print(json.dumps(summary, indent=1))


def _name(mutant: dict[str, Any]) -> str:
    return f"{mutant['file']} {mutant['function']}: {mutant['old']} -> {mutant['new']}"


def _copy(folder: Path) -> Path:
    for part in ("src", "tests", "recipes"):
        shutil.copytree(ROOT / part, folder / part, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", folder)
    return folder


def _warm_up() -> None:
    """Import once what all test runs import, apart from the code under test: each run is a fork."""
    os.environ |= {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}  # before they are read, at imports
    import lightning_fabric  # noqa: F401
    import open_clip  # noqa: F401
    import pytest  # noqa: F401
    import torch

    torch.set_num_threads(1)


def _all(mutants: list[dict[str, Any]], copies: list[Path]) -> list[dict[str, Any]]:
    """Run the tests of every mutant (unchanged code, where it has no file), one in each copy at a time."""
    waiting, free = [*enumerate(mutants)], [*copies]
    under_way: dict[int, tuple[int, Path, Path | None, str]] = {}
    outcomes: dict[int, dict[str, Any]] = {}
    while waiting or under_way:
        while waiting and free:
            at, mutant = waiting.pop(0)
            changed = mutate(mutant, free[-1] / "src/dear") if "file" in mutant else (None, "")
            if changed is None:
                outcomes[at] = {"name": mutant["name"], "ending": "lost", "cpu_seconds": 0.0}
                continue
            copy, (path, content) = free.pop(), changed
            before = path.read_text() if path else ""
            if path:
                path.write_text(content)
            sys.stderr.flush()
            child = os.fork()
            if child == 0:
                _test_process(copy, [f"tests/{name}" for name in THEMES[mutant["theme"]][1]])
            under_way[child] = at, copy, path, before
        child, status, usage = os.wait4(-1, 0)
        at, copy, path, before = under_way.pop(child)
        if path:
            path.write_text(before)
        free.append(copy)
        outcomes[at] = _outcome(mutants[at]["name"], copy, status, usage.ru_utime + usage.ru_stime)
    return [outcomes[at] for at in range(len(mutants))]


def _outcome(name: str, copy: Path, status: int, seconds: float) -> dict[str, Any]:
    """Killed is a failed test, code that cannot be imported, or a hang; else the mutant survived."""
    code, printed = os.waitstatus_to_exitcode(status), (copy / "output.txt").read_text(errors="replace")
    if code == WRONG_TREE:
        sys.exit(f"the tests of {name} did not run on the copy: {printed[-2000:]}")
    failed = [line for line in printed.splitlines() if line.startswith(("FAILED", "ERROR"))]
    by = failed[-1][:200] if failed else f"exit {code}"
    ending = {"ending": "survived"} if code == 0 else {"ending": "killed", "by": by}
    print(f"{ending['ending']:8} {seconds:5.1f} s  {name[:120]!r}  {ending.get('by', '')}", file=sys.stderr)
    return {"name": name, **ending, "cpu_seconds": round(seconds, 1)}


def _test_process(copy: Path, paths: list[str]) -> None:
    """Run tests on the copy and end the process with pytest's exit code. Never returns."""
    code = WRONG_TREE
    with contextlib.suppress(BaseException):
        with (copy / "output.txt").open("w") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS))
        signal.alarm(20 * CPU_SECONDS)  # one that only waits takes no CPU time
        os.chdir(copy)
        sys.dont_write_bytecode = True
        sys.path[:0] = [str(copy / "src"), str(copy)]
        for name in [name for name in sys.modules if name.split(".")[0] in ("dear", "tests")]:
            del sys.modules[name]  # of the tree that this tool is run from
        import pytest

        ending = int(pytest.main(["-x", "-q", "-n", "0", "-p", "no:cacheprovider", "-k", "not real", *paths]))
        import dear

        assert Path(str(dear.__file__)).is_relative_to(copy)
        code = ending
        sys.stdout.flush()
    os._exit(code)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(required=True, dest="command")
    commands.add_parser("draw", help="draw the sample anew, from today's code")
    running = commands.add_parser("run", help="run the tests against every mutant")
    running.add_argument("result", type=Path)
    options = parser.parse_args()
    if options.command == "run":
        run(options.result)
    else:
        SAMPLE.write_text("[\n" + ",\n".join(json.dumps(mutant) for mutant in draw()) + "\n]\n")


if __name__ == "__main__":
    main()
