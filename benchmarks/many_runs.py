"""Runs of many methods in one command against the sum of single commands, on tasks of the Attribute World.

    python benchmarks/many_runs.py --methods coop,maple,promptsrc --tasks street-signs

Each command is a process of its own with one thread. CPU seconds include its start. The sweep must give the
results of the single runs, to the last digit; with shared views (--train.view-seed, and a view cache in
float32) results are those of other views.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from measure import machine, show

ALL = (
    "zero-shot,coop,clip-adapter,prograd,tcp,atprompt,cocoop,maple,mmrl,mmrl++,promptsrc,skip,tac,provp,dear"
)


def timed(methods: str, tasks: str, out: Path, epochs: int, *options: str) -> dict[str, float]:
    """CPU and wall seconds of one command."""
    shorter = ["--train.epochs", str(epochs), "--train.warmup-epochs", "0"] if epochs else []
    command = [sys.executable, "-c", "from dear.cli.main import main; raise SystemExit(main())"]
    command += ["run", "base-to-novel", "--methods", methods, "--data", tasks, "--out", str(out)]
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(
        [*command, *shorter, *options],
        check=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"CPU seconds": cpu, "wall seconds": time.perf_counter() - start}


def results(folder: Path) -> dict[str, Any]:
    """The results of a folder's records by run."""
    found = (json.loads(path.read_text(encoding="utf-8")) for path in folder.rglob("*.json"))
    return {one["key"]: one["results"] for one in found if "results" in one}


def main() -> None:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--methods", default=ALL, help="separated by commas")
    made.add_argument("--tasks", default="street-signs", help="separated by commas")
    made.add_argument("--epochs", type=int, default=0, help="fewer epochs, to try the benchmark out")
    made.add_argument("--json", action="store_true", help="print JSON instead of a table")
    made.add_argument("--out", type=Path, help="also write the JSON to this file")
    options = made.parse_args()
    methods, tasks = options.methods.split(","), options.tasks.split(",")
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        single = [
            timed(method, task, folder / "single", options.epochs) for task in tasks for method in methods
        ]
        total = {name: sum(one[name] for one in single) for name in single[0]}
        rows.append({"what": "single commands", "commands": len(single), **total})
        sweep = timed(options.methods, options.tasks, folder / "sweep", options.epochs)
        if results(folder / "sweep") != results(folder / "single"):
            raise SystemExit("the sweep does not give the results of the single runs.")
        rows.append({"what": "one command", "commands": 1, **sweep})
        shared = ["--train.view-seed", "1", "--train.view-cache", "4", "--train.view-cache-type", "float32"]
        shared += ["--dataset.cache", str(folder / "cache")]
        views = timed(options.methods, options.tasks, folder / "views", options.epochs, *shared)
        rows.append({"what": "one command, shared views", "commands": 1, **views})
    for row in rows:
        row["of single"] = row["CPU seconds"] / total["CPU seconds"]
    settings = {"methods": options.methods, "tasks": options.tasks, "epochs": options.epochs or "published"}
    show({"machine": machine(), "settings": settings, "rows": rows}, options)


if __name__ == "__main__":
    main()
