"""Freeze the numbers that the program computes, before a refactor, and compare with them afterwards.

    python -m tools.baseline record FOLDER          writes FOLDER/baseline.json
    python -m tools.baseline compare BEFORE AFTER   prints a line for each difference; exit code 1 if any

Everything goes through the command line (baseline.yaml) on the tiny CLIP, offline, and is read from the JSON
and the tables that it writes, so that the tool runs unchanged whatever happens inside the package. Names and
words are not compared. Commands and options that get other names are entered in RENAMED.
"""

import contextlib
import hashlib
import io
import json
import os
import re
import shlex
import shutil
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from cyclopts import App
from PIL import Image
from safetensors.numpy import load_file

from dear.cli.main import main

CASES = Path(__file__).with_suffix(".yaml")
SCRATCH = Path(tempfile.gettempdir()) / "dear-baseline"
"""Always the same folder: some tables state paths."""
RENAMED: dict[str, str] = {}
"""A command or option when the baseline was frozen, and what it is called now: {"--old": "--new"}."""
BY_RUN = ["results", "train", "selection", "fewshot", "fusion_weights", "trainable_parameters"]
"""Fields of a record that hold what came out: the digits of a run."""
DROPPED = {"key", "seconds", "peak_memory", "environment", "memory", "created"}
"""Fields of records and of --json that depend on time, memory, machine or code."""

app = App(help=__doc__, version_flags=[])


@app.command
def record(folder: Path) -> None:
    """Run everything in the scratch folder; write baseline.json."""
    target = folder.resolve() / "baseline.json"
    if target.exists():
        sys.exit(f"{folder} holds a record: give another folder.")
    target.parent.mkdir(parents=True, exist_ok=True)
    SCRATCH.mkdir()  # fails while another record is under way, or after one was cut off: remove it then
    os.environ |= {"OMP_NUM_THREADS": "1", "DEAR_CACHE": str(SCRATCH / "cache"), "HF_HUB_OFFLINE": "1"}
    os.environ.pop("DEAR_DATA", None)
    warnings.simplefilter("ignore")
    cases = yaml.safe_load(CASES.read_text())
    common = {name: cases.pop(name) for name in ("methods", "short")}
    runs, commands = (
        {name: shlex.split(line.format(**common)) for name, line in cases[part].items()}
        for part in ("runs", "commands")
    )
    try:
        with contextlib.chdir(SCRATCH):
            make_data()
            baseline = {
                "runs": {name: records_of(name, words) for name, words in runs.items()},
                "reports": {name: report(name) for name in runs},
                "commands": {name: outcome(words) for name, words in commands.items()},
                "written": written(),
            }
    finally:
        shutil.rmtree(SCRATCH)
    target.write_text(json.dumps(baseline, indent=1, sort_keys=True) + "\n")


def make_data() -> None:
    """Patterned images: folders of classes, of domains, of damaged images and of sixteen; and the recipe."""
    draw(Path("photos"), ["red", "green", "blue", "sea", "sand", "stone"], 1, 16)
    draw(Path("toys"), ["car", "doll", "ball", "kite"], 2, 12)
    draw(Path("many"), ["fern", "moss", "reed", "vine"], 6, 40)
    draw(Path("domains/plain"), ["cat", "dog", "hen"], 3, 10)
    draw(Path("domains/noisy"), ["cat", "dog", "hen"], 4, 10)
    draw(Path("damaged"), ["one", "two"], 5, 6)
    Path("damaged/one/02.png").write_bytes(Path("damaged/one/02.png").read_bytes()[:300])
    Path("damaged/two/03.png").write_bytes(b"no image")
    shutil.copy("damaged/two/04.png", "damaged/one/04.png")
    Path("sixteen").mkdir()
    shutil.copy(CASES.with_name("baseline_recipe.yaml"), "recipe.yaml")
    for number, path in enumerate(sorted(Path("photos").glob("*/1[0-5].png"))[::2][:16]):
        shutil.copy(path, f"sixteen/{number:02}.png")


def draw(folder: Path, classes: Sequence[str], seed: int, count: int) -> None:
    """Folders of ``count`` images of waves, in a color and a wave length of each class."""
    generator = np.random.default_rng(seed)
    row, column = np.mgrid[0:48, 0:40]
    for label, name in enumerate(classes):
        (folder / name).mkdir(parents=True)
        color = np.array([37 * label % 256, (91 * label + 60) % 256, (151 * label + 120) % 256], float)
        for number in range(count):
            wave = 60 * np.sin((column * (1 + label) + row * (label % 3)) / (5 + number))
            pixels = color + wave[..., None] + generator.integers(-20, 21, (48, 40, 3))
            Image.fromarray(pixels.clip(0, 255).astype("uint8")).save(folder / name / f"{number:02}.png")


def dear(words: Sequence[str]) -> tuple[int, str]:
    """Run a command in this process: its exit code and what it printed."""
    words = [*(RENAMED.get(word, word) for word in words), "--json"]
    with contextlib.redirect_stdout(io.StringIO()) as printed, contextlib.redirect_stderr(io.StringIO()):
        code = main(words)
    print(f"exit {code}  {' '.join(words)[:90]}", file=sys.stderr)
    if code in (130, 143):  # Ctrl-C or SIGTERM, which the command turns into an exit code
        sys.exit(code)
    return code, printed.getvalue()


def outcome(words: Sequence[str]) -> dict[str, Any]:
    """The exit code of a command and its result."""
    code, printed = dear(words)
    return {"exit": code, "result": stable(json.loads(printed))}


def records_of(name: str, words: Sequence[str]) -> dict[str, Any]:
    """The records of a command that runs experiments, by their files' names without the key at the end."""
    out = Path("runs", name)
    code, _ = dear(words if name == "recipe" else [*words, "--out", str(out)])  # the recipe names it
    paths = sorted(out.glob("*.json"))
    records = {path.stem.rpartition("-")[0]: stable(json.loads(path.read_text())) for path in paths}
    return {"exit": code, "records": records}


def report(name: str) -> dict[str, Any]:
    """The tables of a report on records whose times, keys and environments are always the same."""
    timeless = Path("timeless", name)
    timeless.mkdir(parents=True)
    folders = [name, "base-to-novel-selected"] if name == "retrieval" else [name]  # a page needs a table
    for path in (path for folder in folders for path in sorted(Path("runs", folder).glob("*.json"))):
        run, record = path.stem.rpartition("-")[0], json.loads(path.read_text(), object_hook=_without_times)
        key = _digest(run.encode())
        facts = record["environment"].items()
        fields = {field: field if isinstance(value, str) else 1 for field, value in facts}
        record |= {"key": key, "environment": fields | {"device": "cpu"}}
        (timeless / f"{run}-{key[:8]}.json").write_text(json.dumps(record))
        if (predictions := path.with_suffix(".npz")).exists():
            shutil.copy(predictions, timeless / f"{run}-{key[:8]}.npz")
    out = f"reports/{name}"
    return outcome(["report", str(timeless), "--out", out, "--title", name]) | {"files": tables(Path(out))}


def _without_times(fields: dict[str, Any]) -> dict[str, Any]:
    return fields | {key: _ones(fields[key]) for key in ("seconds", "peak_memory") if key in fields}


def _ones(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _ones(item) for key, item in value.items()}
    return 1.0 if isinstance(value, int | float) else value


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


def written() -> dict[str, Any]:
    """The numbers of tables that commands wrote besides what they printed, and hashes of bundles' tensors."""
    tensors = {
        path.parent.name: {name: _digest(tensor.tobytes()) for name, tensor in load_file(path).items()}
        for path in sorted(Path().glob("bundle*/*.safetensors"))
    }
    return {"files": tables(Path("page")) | tables(Path(), "predictions.csv"), "tensors": tensors}


def tables(folder: Path, pattern: str = "**/*.csv") -> dict[str, list[float]]:
    """The numbers of each table (CSV) in a folder."""
    number = re.compile(r"-?\d+(\.\d+)?(e-?\d+)?")
    return {
        str(path): [
            float(cell) for cell in path.read_text().replace("\n", ",").split(",") if number.fullmatch(cell)
        ]
        for path in sorted(folder.glob(pattern))
    }


def stable(value: Any) -> Any:
    """JSON without what depends on time, machine or code."""
    if isinstance(value, dict):
        return {key: stable(item) for key, item in value.items() if key not in DROPPED}
    return [stable(item) for item in value] if isinstance(value, list) else value


@app.command
def compare(before: Path, after: Path) -> int:
    """List the runs, tables, commands and bundles of two records whose numbers differ."""
    first, second = (json.loads((folder / "baseline.json").read_text()) for folder in (before, after))
    lines = differences(first, second)
    print("\n".join(lines) if lines else "no difference")
    return 1 if lines else 0


def differences(before: Any, after: Any) -> list[str]:
    """A line for each run, report, command or bundle whose numbers differ, whatever they are called."""
    first, second = digits(before), digits(after)
    lines = [f"{case}: missing" for case in first if case not in second]
    for case in first.keys() & second.keys():
        gone = [*(first[case] - second[case]).elements()]
        new = [*(second[case] - first[case]).elements()]
        if gone or new:
            lines.append(f"{case}: {len(gone)} numbers gone, {len(new)} new: {gone[:4]} -> {new[:4]}")
    return sorted(lines)


def digits(baseline: Any) -> dict[str, Counter[Any]]:
    """The numbers of every case, in no order; of a bundle its tensors' hashes."""
    cases = {
        f"run {name} / {run}": {field: record.get(field) for field in BY_RUN}
        for name, command in baseline["runs"].items()
        for run, record in command["records"].items()
    }
    cases |= {f"tables {name}": parts["files"] for name, parts in baseline["reports"].items()}
    cases |= {f"command {name}": parts for name, parts in baseline["commands"].items()}
    cases["written"] = baseline["written"]["files"]
    tensors = baseline["written"]["tensors"]
    return {
        name: Counter(float(leaf) for leaf in leaves(case) if type(leaf) in (int, float))
        for name, case in cases.items()
    } | {f"tensors of {name}": Counter(tensors[name].values()) for name in tensors}


def leaves(value: Any) -> Iterator[Any]:
    """The values below a nested one."""
    if isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from leaves(item)
    else:
        yield value


if __name__ == "__main__":
    sys.exit(app())
