"""A fixed sample of small faults (mutants) in core code, and how many of them the tests notice.

    python -m tools.mutants RESULT.json   makes each fault in a copy of the tree and runs the tests near it

A mutant of mutants.json has the lines of a file that it changes (`old`, which are there once) and what stands
there instead (`new`). Where the code has changed since, the mutant is lost: give it its new lines by hand.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Queue

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
    "training loop": "unit/training/test_loop unit/training/test_steps unit/training/test_options "
    "unit/training/test_trunks",
    "splits": "unit/data/test_fewshot unit/data/test_own unit/data/sources/test_folders",
    "metrics": "unit/evaluation/test_metrics unit/report/test_run_mistakes unit/adapters/test_scoring",
    "TEXTSPAN": "unit/roles/test_textspan unit/roles/test_assign unit/roles/test_variants",
    "bundle": "unit/adapters/test_bundle unit/adapters/test_fit",
}
"""The files below tests/ that guard the code of a theme."""


def mutate(mutant: dict[str, str], source: Path) -> str | None:
    """The new content of the file below ``source`` that a mutant changes; None if its place is lost."""
    path = source / mutant["file"]
    content = path.read_text() if path.exists() else ""
    return content.replace(mutant["old"], mutant["new"]) if content.count(mutant["old"]) == 1 else None


def _copy(folder: Path) -> Path:
    for part in ("src", "tests", "tools", "recipes"):
        shutil.copytree(ROOT / part, folder / part, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", folder)
    return folder


def _run_tests(theme: str, copy: Path) -> str:
    """How the tests of a theme end in a copy of the tree: killed (by a failed test or a hang) or survived."""
    tests = [f"tests/{name}.py" for name in TESTS[theme].split()]
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-n", "0", "-p", "no:cacheprovider", *tests]
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "PYTHONPATH": "src"}
    environment["PYTHONDONTWRITEBYTECODE"] = "1"  # a changed file may have the old one's time and size
    try:
        run = subprocess.run(command, cwd=copy, env=environment, capture_output=True, timeout=SECONDS)
        return "killed" if run.returncode else "survived"
    except subprocess.TimeoutExpired:
        return "killed"


def _try(mutant: dict[str, str], copies: "Queue[Path]") -> str:
    """How a mutant ends: killed, survived or lost; without a file, nothing is changed."""
    copy = copies.get()
    try:
        if "file" not in mutant:
            return _run_tests(mutant["theme"], copy)
        changed = mutate(mutant, copy / "src/dear")
        if changed is None:
            return "lost"
        path = copy / "src/dear" / mutant["file"]
        before = path.read_text()
        path.write_text(changed)
        try:
            return _run_tests(mutant["theme"], copy)
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
        unchanged = [*pool.map(lambda theme: _try({"theme": theme}, copies), TESTS)]
        if failing := [theme for theme, ending in zip(TESTS, unchanged, strict=True) if ending == "killed"]:
            sys.exit(f"these tests fail without a mutant: {', '.join(failing)}")
        found: dict[str, list[str]] = {"killed": [], "survived": [], "lost": []}
        for mutant, ending in zip(sample, pool.map(lambda one: _try(one, copies), sample), strict=True):
            name = f"{mutant['file']}: {mutant['old'].strip()} -> {mutant['new'].strip()}"
            found[ending].append(name)
            print(f"{ending:8} {name[:160]}", file=sys.stderr)
    result.write_text(json.dumps(found, indent=1) + "\n")
    print({ending: len(names) for ending, names in found.items()})


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(Path(sys.argv[1]))
