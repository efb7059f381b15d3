"""How a fit grows with the number of classes: processor seconds and peak memory of `dear fit`.

    python benchmarks/fit.py                                    # a trial: 10 classes
    python benchmarks/fit.py --classes 100 300 1000 --out benchmarks/results/fit.json

Each class is a drawing of sixteen random colors and has noisy copies of it, so that what is fitted is not
trivial. The fit chooses its method, as by default. Each is a process of its own, under a profiler.
"""

import argparse
import json
import os
import pstats
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from measure import describe_machine
from PIL import Image
from table import table

SIDE, NOISE = 32, 40.0
PARTS = {
    "reading": "load_dataset",
    "encoding": "_encode",
    "regressions": "fit_regression",
    "correction": "fit_correction",
    "evidence": "fit_evidence",
    "strengths": "with_strengths",
    "weights": "fit_weights",
}
"""Functions of `dear`, none of which calls another of them."""
FIT = """
import cProfile, json, resource, sys, time
import dear
photos, model, bundle, profiled = sys.argv[1:]
profile, start = cProfile.Profile(), time.process_time()
profile.runcall(dear.fit, photos, bundle, model=model, verbose=False)
seconds = time.process_time() - start
profile.dump_stats(profiled)
print(json.dumps([seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024]))
"""


def draw(folder: Path, classes: int, shots: int) -> None:
    """Write the pictures, a folder for each class."""
    generator = np.random.default_rng(0)
    for number in range(classes):
        (folder / f"class {number:04}").mkdir(parents=True)
        colors = generator.integers(0, 256, (4, 4, 3))
        for shot in range(shots):
            noisy = np.clip(colors + generator.normal(0, NOISE, colors.shape), 0, 255).astype(np.uint8)
            picture = Image.fromarray(noisy).resize((SIDE, SIDE), Image.Resampling.BICUBIC)
            picture.save(folder / f"class {number:04}" / f"{shot}.png")


def fit(classes: int, options: argparse.Namespace) -> dict[str, Any]:
    """What a fit takes, and the shares of its parts in its time."""
    with tempfile.TemporaryDirectory() as folder:
        draw(Path(folder, "photos"), classes, options.shots)
        words = [f"{folder}/photos", options.model, f"{folder}/bundle", f"{folder}/profile"]
        environment = os.environ | {"DEAR_CACHE": f"{folder}/cache"}
        done = subprocess.run(
            [sys.executable, "-c", FIT, *words], env=environment, check=True, stdout=subprocess.PIPE
        )
        seconds, peak = json.loads(done.stdout)
        stats: Any = pstats.Stats(f"{folder}/profile")
    shares = dict.fromkeys(PARTS, 0.0)
    for (_, _, function), (_, _, _, cumulative, _) in stats.stats.items():
        for part, name in PARTS.items():
            shares[part] += cumulative / stats.total_tt * (function == name)
    return {
        "classes": classes,
        "images": classes * options.shots,
        "CPU s": round(seconds),
        "peak MiB": peak,
        **{f"{part} %": round(100 * share) for part, share in shares.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--classes", type=int, nargs="+", default=[10])
    parser.add_argument("--shots", type=int, default=16, help="images of each class")
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--out", type=Path, help="file of the result: benchmarks/results/fit.json")
    options = parser.parse_args()
    rows = [fit(classes, options) for classes in options.classes]
    print("\n".join(table(rows)))
    if options.out is not None:
        settings = {name: getattr(options, name) for name in ("model", "shots")}
        result = {"settings": settings, "machine": describe_machine(), "rows": rows}
        options.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
