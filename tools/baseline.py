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
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from PIL import Image

CASES = Path(__file__).with_suffix(".yaml")
SCRATCH = Path(tempfile.gettempdir()) / "dear-baseline"
"""Always the same folder: some pages state paths."""
RENAMED_WORDS: dict[str, str] = {}
"""A command or option when the baseline was frozen, and what it is called now: {"--old": "--new"}."""
RENAMED_KEYS: dict[str, str] = {"mistakes": "answers"}
"""A key of a record or of --json now, and what it was called then: {"new": "old"}."""
BY_RUN = ["results", "train", "selection", "fewshot", "fusion_weights", "trainable_parameters"]
"""Fields of a record that hold what came out: the digits of a run."""
DROPPED = {"key", "seconds", "peak_memory", "environment", "memory", "created"}
"""Fields of records and of --json that depend on time, memory, machine or code."""
WRITTEN = "roles.html spans.txt found.json found.html assigned.json predictions.csv sheet.png page"
"""What commands write besides what they print."""
LONG = 300
"""Characters beyond which a text (a picture in base64) is recorded by its hash."""


def record(folder: Path) -> None:
    """Run everything in the scratch folder; write baseline.json and the files of all reports."""
    if (folder / "baseline.json").exists():
        sys.exit(f"{folder} holds a record: give another folder.")
    SCRATCH.mkdir()  # fails while another record is under way, or after one was cut off: remove it then
    os.environ |= {"OMP_NUM_THREADS": "1", "DEAR_CACHE": str(SCRATCH / "cache"), "HF_HUB_OFFLINE": "1"}
    os.environ.pop("DEAR_DATA", None)
    warnings.simplefilter("ignore")
    cases = yaml.safe_load(CASES.read_text())
    common = {name: cases.pop(name) for name in ("methods", "short")}
    runs, commands, refusals = (
        {name: shlex.split(line.format(**common)) for name, line in cases[part].items()}
        for part in ("runs", "commands", "refusals")
    )
    files = folder / "files"
    files.mkdir(parents=True)
    try:
        with contextlib.chdir(SCRATCH):
            make_data()
            baseline = {
                "runs": {name: records_of(name, words) for name, words in runs.items()},
                "reports": {name: report(name, files) for name in runs},
                "commands": {name: outcome(words) for name, words in commands.items()},
                "written": written(files / "written"),
                "refusals": {name: outcome(words) for name, words in refusals.items()},
            }
    finally:
        shutil.rmtree(SCRATCH)
    (folder / "baseline.json").write_text(json.dumps(baseline, indent=1, sort_keys=True) + "\n")
    print(f"wrote {folder / 'baseline.json'}")


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


def dear(words: Sequence[str]) -> tuple[int | str, str]:
    """Run a command in this process: its exit code (or the exception that it raised) and what it printed."""
    (script,) = entry_points(group="console_scripts", name="dear")
    words = [*(RENAMED_WORDS.get(word, word) for word in words), "--json"]
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(io.StringIO()):
        try:
            code: int | str = script.load()(words)
        except Exception as error:
            code = f"{type(error).__name__}: {error}"
    print(f"exit {code}  {' '.join(words)[:90]}", file=sys.stderr)
    if code in (130, 143):  # Ctrl-C or SIGTERM, which the command turns into an exit code
        sys.exit(code)
    return code, printed.getvalue()


def outcome(words: Sequence[str]) -> dict[str, Any]:
    """The exit code of a command and its result, or the kind of its error."""
    code, printed = dear(words)
    if not printed.startswith("{"):
        return {"exit": code, "printed": printed}
    result = json.loads(printed)
    if "kind" in result and "error" in result:
        return {"exit": code, "kind": result["kind"]}
    return {"exit": code, "result": stable(result)}


def records_of(name: str, words: Sequence[str]) -> dict[str, Any]:
    """The records of a command that runs experiments, by their files' names without the key at the end."""
    out = Path("runs", name)
    code, _ = dear(words if name == "recipe" else [*words, "--out", str(out)])  # the recipe names it
    paths = sorted(out.glob("*.json"))
    return {
        "exit": code,
        "records": stable({path.stem.rpartition("-")[0]: json.loads(path.read_text()) for path in paths}),
    }


def report(name: str, files: Path) -> dict[str, Any]:
    """The files of a report on records whose times, keys and environments are always the same, so that its
    bytes depend on nothing else.
    """
    timeless = Path("timeless", name)
    timeless.mkdir(parents=True)
    folders = [name, "base-to-novel-selected"] if name == "retrieval" else [name]  # a page needs a table
    for path in (path for folder in folders for path in sorted(Path("runs", folder).glob("*.json"))):
        run, record = path.stem.rpartition("-")[0], json.loads(path.read_text(), object_hook=_without_times)
        key = hashlib.sha256(run.encode()).hexdigest()[:16]
        fields = {
            field: field if isinstance(value, str) else 1 for field, value in record["environment"].items()
        }
        record |= {"key": key, "environment": fields | {"device": "cpu"}}
        (timeless / f"{run}-{key[:8]}.json").write_text(json.dumps(record))
        if (predictions := path.with_suffix(".npz")).exists():
            shutil.copy(predictions, timeless / f"{run}-{key[:8]}.npz")
    result = outcome(["report", str(timeless), "--out", f"reports/{name}", "--title", name])
    return result | {"files": digests(Path("reports", name), files / "reports" / name)}


def _without_times(fields: dict[str, Any]) -> dict[str, Any]:
    return {
        key: _ones(value) if key in ("seconds", "peak_memory") else value for key, value in fields.items()
    }


def _ones(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _ones(item) for key, item in value.items()}
    return 1.0 if isinstance(value, int | float) else value


def written(files: Path) -> dict[str, Any]:
    """The files that commands wrote besides what they printed, and the tensors of bundles."""
    from safetensors.numpy import load_file

    Path("written").mkdir()
    for path in map(Path, WRITTEN.split()):
        if path.is_dir():
            shutil.copytree(path, Path("written", path))
        elif path.exists():
            shutil.copy(path, "written")
    tensors = {
        path.parent.name: {name: _digest(tensor.tobytes()) for name, tensor in load_file(path).items()}
        for path in sorted(Path().glob("bundle*/*.safetensors"))
    }
    return {"files": digests(Path("written"), files), "tensors": tensors}


def digests(folder: Path, copy: Path) -> dict[str, Any]:
    """A hash for each file, and for a table (CSV) its numbers too. The files are kept to look at."""
    if not folder.exists():
        return {}
    shutil.copytree(folder, copy)
    found: dict[str, Any] = {}
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        found[str(path.relative_to(folder))] = digest = _digest(path.read_bytes())
        if path.suffix == ".csv":
            cells = path.read_text().replace("\n", ",").split(",")
            numbers = [float(cell) for cell in cells if re.fullmatch(r"-?\d+(\.\d+)?(e-?\d+)?", cell)]
            found[str(path.relative_to(folder))] = {"sha256": digest, "numbers": numbers}
    return found


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


def differences(before: Any, after: Any) -> list[str]:
    """A line for each value that is not the same, missing or new."""
    first, second = dict(leaves(before)), dict(leaves(after))

    def show(values: dict[str, Any], key: str) -> str:
        return json.dumps(values[key])[:100] if key in values else "missing"

    changed = [key for key in first if second.get(key, first) != first[key]]
    lines = [f"{key}: {show(first, key)} -> {show(second, key)}" for key in changed]
    return lines + [f"{key}: new: {show(second, key)}" for key in second if key not in first]


def leaves(value: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """The values below a nested one, each with its path."""
    if isinstance(value, dict | list) and value:
        for name, item in value.items() if isinstance(value, dict) else enumerate(value):
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
        name: Counter(float(leaf) for _, leaf in leaves(case) if type(leaf) in (int, float))
        for name, case in cases.items()
    } | {f"tensors of {name}": Counter(tensors[name].values()) for name in tensors}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
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
    for baseline in (before, after):  # of older records
        baseline.pop("malformed files", None)
        baseline.pop("info", None)
    lines = differing_digits(before, after) if options.digits else differences(before, after)
    print("\n".join(lines) if lines else "no difference")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
