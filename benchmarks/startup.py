"""What starting a command costs: modules, import time, CPU seconds. --before SRC compares an earlier version.

python benchmarks/startup.py --before ../earlier/src --out benchmarks/results/startup.json

Each command runs in processes of its own, in turn, with one thread; medians. "import s" is the sum over all
modules by Python's own clock (-X importtime), in a run of its own.
"""

import argparse
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from measure import machine, show
from PIL import Image

from dear.adapters.bundle import Bundle
from dear.backbone.load import load_clip
from dear.methods.registry import METHODS

SOURCE = Path(__file__).parents[1] / "src"
LINE = re.compile(r"import time:\s+(\d+) \|\s+\d+ \|")
RUN = "import sys; from dear.cli.main import main; sys.exit(main())"


def main() -> None:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--repeats", type=int, default=5, help="timings of each; 0 to count modules only")
    made.add_argument("--before", type=Path, help="the src folder of an earlier version, to compare")
    made.add_argument("--json", action="store_true", help="print JSON instead of a table")
    made.add_argument("--out", type=Path, help="also write the JSON to this file")
    options = made.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        rows = measured(commands(Path(folder)), options)
    show({"machine": machine(), "settings": {"repeats": options.repeats}, "rows": rows}, options)


def commands(folder: Path) -> dict[str, list[str]]:
    """What is started, by name: a Python program's text, and its arguments."""
    bundle = Bundle(
        method="zero-shot",
        settings=METHODS["zero-shot"].settings(),
        model="tiny",
        pretrained=None,
        weights=load_clip("tiny").identity,
        roles=None,
        classes=("red circle", "blue square"),
        templates=("a photo of a {}.",),
        tensors={},
    )
    place = bundle.save_pretrained(folder / "bundle")
    image = folder / "red.png"
    Image.new("RGB", (64, 64), "red").save(image)
    return {
        "import torch, for comparison": ["import torch"],
        "dear --help": [RUN, "--help"],
        "dear fit --help": [RUN, "fit", "--help"],
        "an error: dear fit --data nowhere": [RUN, "fit", "--data", "nowhere", "--out", str(folder / "new")],
        "dear predict, one image": [RUN, "predict", str(place), str(image)],
    }


def measured(started: dict[str, list[str]], options: argparse.Namespace) -> list[dict[str, Any]]:
    sources = {"now": SOURCE} | ({} if options.before is None else {"before": options.before.resolve()})
    keys = [(name, version) for name in started for version in sources if "dear" in name or version == "now"]
    wall: dict[tuple[str, str], list[float]] = {key: [] for key in keys}
    cpu: dict[tuple[str, str], list[float]] = {key: [] for key in keys}
    rounds = options.repeats and options.repeats + 1  # the first reads the disk: it does not count
    for _ in range(rounds):
        for key in keys:
            seconds, used, _ = once(started[key[0]], sources[key[1]])
            wall[key].append(seconds)
            cpu[key].append(used)
    rows = []
    for key in keys:
        name, version = key
        times = [int(found) for found in LINE.findall(once(started[name], sources[version], counted=True)[2])]
        rows.append(
            {
                "command": name,
                **({"version": version} if len(sources) > 1 else {}),
                "modules": len(times),
                "import s": sum(times) / 1e6,
                "CPU s": _median(cpu[key][1:]),
                "wall s": _median(wall[key][1:]),
            }
        )
    return rows


def _median(seconds: list[float]) -> float | None:
    return statistics.median(seconds) if seconds else None


def once(words: list[str], source: Path, *, counted: bool = False) -> tuple[float, float, str]:
    """Wall and CPU seconds of a process, and what it wrote to stderr."""
    known = {name: os.environ[name] for name in ("PATH", "HOME", "LD_LIBRARY_PATH") if name in os.environ}
    environment = {**known, "PYTHONPATH": str(source), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    more = ["-X", "importtime"] if counted else []
    with tempfile.TemporaryFile("w+") as errors:
        start = time.perf_counter()
        process = subprocess.Popen(
            [sys.executable, *more, "-c", *words], stdout=subprocess.DEVNULL, stderr=errors, env=environment
        )
        _, _, usage = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - start
        process.returncode = 0  # it has been waited for
        errors.seek(0)
        return seconds, usage.ru_utime + usage.ru_stime, errors.read()


if __name__ == "__main__":
    main()
