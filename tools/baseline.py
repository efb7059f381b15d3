"""Freeze what the program computes, before a refactor, and compare with it afterwards.

    python -m tools.baseline record FOLDER          writes FOLDER/baseline.json and FOLDER/files/
    python -m tools.baseline compare BEFORE AFTER   prints a line for each difference; exit code 1 if any
    python -m tools.baseline compare --digits BEFORE AFTER

Everything goes through the command line (baseline.yaml) on the tiny CLIP, offline, and is read from the JSON
that it writes, so that the tool runs unchanged whatever happens inside the package. Commands, options and
keys that get other names are entered in RENAMED_WORDS and RENAMED_KEYS.

`compare --digits` ignores names and words: for each run and command it compares the numbers alone.
"""

import argparse
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
import time
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[1]
SCRATCH = Path(tempfile.gettempdir()) / "dear-baseline"
"""Always the same folder: some pages state paths."""

RENAMED_WORDS: dict[str, str] = {}
"""A command or option when the baseline was frozen, and what it is called now: {"--old": "--new"}."""
RENAMED_KEYS: dict[str, str] = {"mistakes": "answers"}
"""A key of a record or of --json now, and what it was called then: {"new": "old"}."""

BY_RUN = ["results", "train", "selection", "answers", "fewshot", "fusion_weights", "trainable_parameters"]
"""Fields of a record that hold what came out: the digits of a run."""

DROPPED = {"key", "seconds", "peak_memory", "environment", "memory", "created"}
"""Fields of records and of --json that depend on time, memory, machine or code: dropped."""
TIMES = {"seconds", "peak_memory"}
"""Fields of records whose numbers are 1 when a report is written from them."""
LONG = 300
"""Characters beyond which a text (a picture in base64) is recorded by its hash."""


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(required=True, dest="command")
    recording = commands.add_parser("record", help="run everything and write what came out into a folder")
    recording.add_argument("folder", type=Path)
    comparing = commands.add_parser("compare", help="list the differences of two records")
    comparing.add_argument("before", type=Path)
    comparing.add_argument("after", type=Path)
    comparing.add_argument("--digits", action="store_true", help="only the numbers of each run and command")
    options = parser.parse_args()
    if options.command == "record":
        record(options.folder.resolve())
        return 0
    before, after = (
        json.loads((folder / "baseline.json").read_text()) for folder in (options.before, options.after)
    )
    for baseline in (before, after):
        baseline.pop("malformed files", None)  # of older records
    lines = differing_digits(before, after) if options.digits else differences(before, after)
    print("\n".join(lines) if lines else "no difference")
    return 1 if lines else 0


def record(folder: Path) -> None:
    """Run everything in the scratch folder; write baseline.json and the files of all reports."""
    if (folder / "baseline.json").exists():
        sys.exit(f"{folder} holds a record: give another folder.")
    SCRATCH.mkdir()  # fails while another record is under way, or after one was cut off: remove it then
    os.environ |= {"OMP_NUM_THREADS": "1", "DEAR_CACHE": str(SCRATCH / "cache"), "HF_HUB_OFFLINE": "1"}
    os.environ.pop("DEAR_DATA", None)
    sys.path[:0] = [str(ROOT)]
    warnings.simplefilter("ignore")
    (folder / "files").mkdir(parents=True)
    try:
        with contextlib.chdir(SCRATCH):
            make_data()
            baseline = recorded(folder / "files")
    finally:
        shutil.rmtree(SCRATCH)
    (folder / "baseline.json").write_text(json.dumps(baseline, indent=1, sort_keys=True) + "\n")
    print(f"wrote {folder / 'baseline.json'} in {time.process_time():.0f} CPU seconds")


def recorded(files: Path) -> dict[str, Any]:
    lines = command_lines()
    return {
        "runs": {name: runs(name, words) for name, words in lines["runs"].items()},
        "reports": {name: report(name, files) for name in lines["runs"]},
        "commands": {name: outcome(words) for name, words in lines["commands"].items()},
        "info": outcome(["info"], only_keys=True),
        "written": written(files / "written"),
        "refusals": {name: outcome(words) for name, words in lines["refusals"].items()},
    }


def command_lines() -> dict[str, dict[str, list[str]]]:
    """The words of every run, command and refusal of baseline.yaml, by name."""
    cases = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text())
    common = {name: cases.pop(name) for name in ("methods", "short")}
    return {
        part: {name: shlex.split(line.format(**common)) for name, line in lines.items()}
        for part, lines in cases.items()
    }


def make_data() -> None:
    """Patterned images: folders of classes, of domains, of damaged images and of sixteen; and the recipe."""
    draw(Path("photos"), ["red", "green", "blue", "sea", "sand", "stone"], 1, 16)
    draw(Path("toys"), ["car", "doll", "ball", "kite"], 2, 12)
    draw(Path("domains/plain"), ["cat", "dog", "hen"], 3, 10)
    draw(Path("domains/noisy"), ["cat", "dog", "hen"], 4, 10)
    draw(Path("damaged"), ["one", "two"], 5, 6)
    Path("damaged/one/02.png").write_bytes(Path("damaged/one/02.png").read_bytes()[:300])
    Path("damaged/two/03.png").write_bytes(b"no image")
    shutil.copy("damaged/two/04.png", "damaged/one/04.png")
    Path("sixteen").mkdir()
    shutil.copy(Path(__file__).with_name("baseline_recipe.yaml"), "recipe.yaml")
    for number, path in enumerate(sorted(Path("photos").glob("*/1[0-5].png"))[::2][:16]):
        shutil.copy(path, f"sixteen/{number:02}.png")


def draw(folder: Path, classes: Sequence[str], seed: int, count: int) -> None:
    import numpy as np
    from PIL import Image

    generator = np.random.default_rng(seed)
    row, column = np.mgrid[0:48, 0:40]
    for label, name in enumerate(classes):
        (folder / name).mkdir(parents=True)
        color = np.array([37 * label % 256, (91 * label + 60) % 256, (151 * label + 120) % 256], float)
        for number in range(count):
            wave = 60 * np.sin((column * (1 + label) + row * (label % 3)) / (5 + number))
            pixels = color + wave[..., None] + generator.integers(-20, 21, (48, 40, 3))
            Image.fromarray(pixels.clip(0, 255).astype("uint8")).save(folder / name / f"{number:02}.png")


def dear(words: Sequence[str], as_json: bool = True) -> tuple[int | str, str]:
    """Run a command in this process: its exit code (or the exception that it raised) and what it printed."""
    (script,) = entry_points(group="console_scripts", name="dear")
    words = [RENAMED_WORDS.get(word, word) for word in words] + ["--json"] * as_json
    printed, began = io.StringIO(), time.process_time()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(io.StringIO()):
        try:
            code: int | str = script.load()(words)
        except Exception as error:
            code = f"{type(error).__name__}: {error}"
    print(f"{time.process_time() - began:6.1f} s  exit {code}  {' '.join(words)[:90]}", file=sys.stderr)
    if code in (130, 143):  # Ctrl-C or SIGTERM, which the command turns into an exit code
        sys.exit(code)
    return code, printed.getvalue()


def outcome(words: Sequence[str], only_keys: bool = False) -> dict[str, Any]:
    """The exit code of a command and its result, or the kind of its error."""
    code, printed = dear(words)
    if not printed.startswith("{"):
        return {"exit": code, "printed": printed}
    result = json.loads(printed)
    if "kind" in result and "error" in result:
        return {"exit": code, "kind": result["kind"]}
    return {"exit": code, "result": keys_of(result) if only_keys else stable(result)}


def runs(name: str, words: Sequence[str]) -> dict[str, Any]:
    """The records of a command that runs experiments, by their files' names without the key at the end."""
    out = Path("runs", name)
    code, _ = dear(words if name == "recipe" else [*words, "--out", str(out)])  # the recipe names it
    records = {
        path.stem.rpartition("-")[0]: json.loads(path.read_text()) for path in sorted(out.glob("*.json"))
    }
    return {"exit": code, "records": stable(records)}


def report(name: str, files: Path) -> dict[str, Any]:
    """The files of a report on records whose times, keys and environments are always the same.

    So its bytes depend on nothing else: numbers under TIMES are 1, texts of the environment are the names of
    their fields, and the key is a hash of the record's name.
    """
    timeless = Path("timeless", name)
    timeless.mkdir(parents=True)
    folders = [name, "base-to-novel-selected"] if name == "retrieval" else [name]  # a page needs a table
    for path in (path for folder in folders for path in sorted(Path("runs", folder).glob("*.json"))):
        run, record = path.stem.rpartition("-")[0], _without_times(json.loads(path.read_text()))
        key = hashlib.sha256(run.encode()).hexdigest()[:16]
        fields = {
            field: field if isinstance(value, str) else 1 for field, value in record["environment"].items()
        }
        record |= {"key": key, "environment": fields | {"device": "cpu"}}
        (timeless / f"{run}-{key[:8]}.json").write_text(json.dumps(record))
    result = outcome(["report", str(timeless), "--out", f"reports/{name}", "--title", name])
    return result | {"files": digests(Path("reports", name), files / "reports" / name)}


def _without_times(value: Any, timed: bool = False) -> Any:
    if isinstance(value, dict):
        return {key: _without_times(item, timed or key in TIMES) for key, item in value.items()}
    if isinstance(value, list):
        return [_without_times(item, timed) for item in value]
    return 1.0 if timed and isinstance(value, int | float) else value


def written(files: Path) -> dict[str, Any]:
    """The files that COMMANDS wrote besides what they printed."""
    wanted = [
        "roles.html",
        "spans.txt",
        "found.json",
        "found.html",
        "assigned.json",
        "predictions.csv",
        "sheet.png",
    ]
    for path in map(Path, wanted):
        if path.exists():
            Path("written").mkdir(exist_ok=True)
            shutil.copy(path, "written")
    if Path("page").exists():
        shutil.copytree("page", "written/page")
    tensors = {path.parent.name: _tensors(path) for path in sorted(Path().glob("bundle*/*.safetensors"))}
    return {"files": digests(Path("written"), files), "tensors": tensors}


def _tensors(path: Path) -> dict[str, str]:
    from safetensors.torch import load_file

    return {name: _digest(tensor.numpy().tobytes()) for name, tensor in load_file(path).items()}


def digests(folder: Path, copy: Path) -> dict[str, Any]:
    """A hash for each file, and for a table (CSV) its numbers too. The files are kept to look at."""
    if not folder.exists():
        return {}
    shutil.copytree(folder, copy)
    paths = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    return {str(path.relative_to(folder)): _file(path) for path in paths}


def _file(path: Path) -> Any:
    digest = _digest(path.read_bytes())
    if path.suffix != ".csv":
        return digest
    cells = path.read_text().replace("\n", ",").split(",")
    return {"sha256": digest, "numbers": [float(cell) for cell in cells if _is_number(cell)]}


def _is_number(cell: str) -> bool:
    return bool(re.fullmatch(r"-?\d+(\.\d+)?(e-?\d+)?", cell))


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


def stable(value: Any) -> Any:
    """JSON without what depends on time, machine or code; long texts by their hash."""
    if isinstance(value, dict):
        named = {RENAMED_KEYS.get(key, key): item for key, item in value.items()}
        return {key: stable(item) for key, item in named.items() if key not in DROPPED}
    if isinstance(value, list):
        return [stable(item) for item in value]
    return f"sha256:{_digest(value.encode())}" if isinstance(value, str) and len(value) > LONG else value


def keys_of(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: keys_of(item) for key, item in value.items()}
    return [keys_of(item) for item in value[:1]] if isinstance(value, list) else type(value).__name__


def differences(before: Any, after: Any) -> list[str]:
    """A line for each value that is not the same, missing or new."""
    first, second = dict(leaves(before)), dict(leaves(after))
    lines = [
        f"{key}: {_shown(first, key)} -> {_shown(second, key)}"
        for key in first
        if second.get(key, first) != first[key]
    ]
    return lines + [f"{key}: new: {_shown(second, key)}" for key in second if key not in first]


def _shown(values: dict[str, Any], key: str) -> str:
    return json.dumps(values[key])[:100] if key in values else "missing"


def leaves(value: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """The values below a nested one, each with its path."""
    if isinstance(value, dict | list) and value:
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for name, item in items:
            yield from leaves(item, f"{key} / {name}" if key else str(name))
    else:
        yield key, value


def differing_digits(before: Any, after: Any) -> list[str]:
    """A line for each run, report, command or bundle whose numbers differ, whatever they are called."""
    first, second = digits(before), digits(after)
    lines = []
    for case, numbers in first.items():
        if case not in second:
            lines.append(f"{case}: missing")
        elif numbers != second[case]:
            lost, new = (list((numbers - second[case]).elements()), list((second[case] - numbers).elements()))
            lines.append(f"{case}: {len(lost)} numbers gone, {len(new)} new: {lost[:4]} -> {new[:4]}")
    return lines


def digits(baseline: Any) -> dict[str, Counter[float]]:
    """The numbers of every case, in no order."""
    cases = {
        f"run {name} / {run}": {field: record.get(field) for field in BY_RUN}
        for name, command in baseline["runs"].items()
        for run, record in command["records"].items()
    }
    cases |= {f"tables {name}": parts["files"] for name, parts in baseline["reports"].items()}
    cases |= {f"command {name}": parts for name, parts in baseline["commands"].items()}
    cases["written"] = baseline["written"]["files"]
    numbers = {
        name: Counter(float(leaf) for _, leaf in leaves(case) if _counts(leaf))
        for name, case in cases.items()
    }
    # Names of tensors may change, their values may not.
    bundles = baseline["written"]["tensors"]
    tensors = {
        f"tensors of {name}": Counter(float(int(digest, 16)) for digest in bundles[name].values())
        for name in bundles
    }
    return numbers | tensors


def _counts(leaf: Any) -> bool:
    return isinstance(leaf, int | float) and not isinstance(leaf, bool)


if __name__ == "__main__":
    sys.exit(main())
