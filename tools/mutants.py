"""A fixed sample of small faults (mutants) in core code, and how many of them the tests notice.

    python -m tools.mutants RESULT.json [THEME...]   in a copy of the tree, with the tests near each fault

A mutant of mutants.json has the lines of a file that it changes (`old`, which are there once) and what stands
there instead (`new`). Where the code has changed since, the mutant is lost: give it its new lines by hand.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SAMPLE = Path(__file__).with_name("mutants.json")
SECONDS = 600
"""After which tests count as hanging, and the mutant as killed."""
TESTS = {
    "mask": "unit/roles/test_mask unit/backbone/test_attention unit/methods/test_dear",
    "losses": "unit/methods/test_dear unit/methods/test_dear_options unit/methods/test_peers "
    "parity/test_public",
    "injection": "unit/backbone/test_towers parity/test_public parity/test_naive",
    "training loop": "unit/training/test_loop unit/training/test_steps unit/training/test_options "
    "unit/training/test_cache unit/training/test_hooks unit/training/test_checkpoint",
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


def try_mutant(mutant: dict[str, str], tree: Path) -> str:
    """How a mutant in a copy of the tree ends: killed, survived or lost."""
    changed, path = mutate(mutant, tree / "src/dear"), tree / "src/dear" / mutant["file"]
    if changed is None:
        return "lost"
    before = path.read_text()
    path.write_text(changed)
    try:
        return "survived" if tests_pass(mutant["theme"], tree) else "killed"
    finally:
        path.write_text(before)


def tests_pass(theme: str, tree: Path) -> bool:
    """True if the tests of a theme pass in a copy of the tree; one that hangs fails."""
    tests = [f"tests/{name}.py" for name in TESTS[theme].split()]
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-n", "0", "-p", "no:cacheprovider", *tests]
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "PYTHONPATH": "src"}
    environment["PYTHONDONTWRITEBYTECODE"] = "1"  # a changed file may have the old one's time and size
    try:
        run = subprocess.run(command, cwd=tree, env=environment, capture_output=True, timeout=SECONDS)
    except subprocess.TimeoutExpired:
        return False
    return run.returncode == 0


def main(result: Path, *themes: str) -> None:
    """Try every mutant, or those of some themes; write which were killed, survived or are lost."""
    themes = themes or (*TESTS,)
    endings = defaultdict[str, list[str]](list)
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder)
        for part in ("src", "tests", "tools", "recipes"):
            shutil.copytree(ROOT / part, tree / part, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(ROOT / "pyproject.toml", tree)
        if failing := [theme for theme in themes if not tests_pass(theme, tree)]:
            sys.exit(f"these tests fail without a mutant: {', '.join(failing)}")
        for mutant in json.loads(SAMPLE.read_text()):
            if mutant["theme"] in themes:
                ending = try_mutant(mutant, tree)
                name = f"{mutant['file']}: {mutant['old'].strip()} -> {mutant['new'].strip()}"
                endings[ending].append(name)
                print(f"{ending:8} {name[:160]}", file=sys.stderr, flush=True)
    result.write_text(json.dumps(endings, indent=1) + "\n")
    print({ending: len(names) for ending, names in endings.items()})


if __name__ == "__main__":
    if not sys.argv[1:] or sys.argv[1].startswith("-") or not {*sys.argv[2:]} <= {*TESTS}:
        sys.exit(f"{__doc__}\nThemes: {', '.join(TESTS)}")
    main(Path(sys.argv[1]), *sys.argv[2:])
