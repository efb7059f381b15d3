"""Read the record of a run: one JSON object with everything its numbers depend on.

python examples/read_a_record.py runs/
"""

import json
import sys
import tempfile
from pathlib import Path

import dear
from dear.evaluation.protocols import PROTOCOLS


def make_records(out: Path) -> Path:
    """Two short runs, to have something to read."""
    experiment = dear.Experiment(
        protocol=PROTOCOLS["base-to-novel"](),
        methods=(dear.MethodSetup("zero-shot"), dear.MethodSetup("dear")),
        data=("street-signs",),
        shots=(1,),
        train={"epochs": 1, "warmup_epochs": 0},
        out=out,
    )
    dear.launch([experiment])
    return out


def main(folder: Path) -> None:
    for path in sorted(folder.glob("*.json")):
        record = json.loads(path.read_text(encoding="utf-8"))
        results = record["results"]
        print(f"\n{path.name} (schema {record['schema']}, {record['protocol']})")
        data = record["dataset"]["title"]
        print(f"  {record['method']} on {data}, {record['shots']} shots, seed {record['seed']}")
        base, novel = (results[half]["accuracy"] for half in ("base", "novel"))
        print(f"  base {base:.3f}, novel {novel:.3f}, harmonic mean {results['hm']:.3f}")
        worst = min(results["novel"]["per_class"].items(), key=lambda one: one[1])
        print(f"  worst novel class: {worst[0]} {worst[1]:.3f}")
        if record["fusion_weights"]:
            print("  weights:", {name: round(weight, 3) for name, weight in record["fusion_weights"].items()})
        for epoch in record["train"]["epochs"]:
            print(f"  epoch {epoch['epoch']}: loss {epoch['loss']:.3f} in {epoch['seconds']:.1f} s")
        print(f"  weights {record['weights']['sha256'][:12]}, code {record['environment']['code']}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        main(Path(sys.argv[1]) if len(sys.argv) > 1 else make_records(Path(made)))
