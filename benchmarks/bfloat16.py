r"""What bfloat16 changes: scores and predictions of the tiny CLIP, and the results of runs.

    python benchmarks/bfloat16.py
    python benchmarks/bfloat16.py --runs runs/bf16-mixed runs/32-true

First, zero-shot on 100 test images of each world task, in float32 and under autocast. With --runs, records of
the same runs in both: the mean difference over data sets of each one's mean over seeds, with its 95% interval
(Student's t). They are made by, for each precision and seed,

    dear run base-to-novel --methods dear --data world --seeds 1 --train.precision bf16-mixed \
      --out runs/bf16-mixed
"""

import argparse
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from dear.backbone.load import load_clip
from dear.backbone.precision import mixed
from dear.data.images.transforms import eval_views
from dear.data.loading import load_dataset
from dear.data.world.tasks import downstream_names
from dear.evaluation.records import read_record
from dear.evaluation.schema import harmonic_mean
from dear.methods.registry import frozen_clip
from dear.report.intervals import paired

IMAGES = 100


@torch.no_grad()
def zero_shot() -> dict[str, Any]:
    """How many images get the same class, how many the right one, and the largest difference of a score."""
    method = frozen_clip(load_clip("tiny"))
    found = {"images": 0, "same class": 0, "right in float32": 0, "right in bfloat16": 0}
    gap = 0.0
    for task in downstream_names():
        data = load_dataset(task)
        method.set_classes(data.classnames, data.templates)
        chosen = torch.arange(0, len(data.test), max(1, len(data.test) // IMAGES))[:IMAGES]
        views = eval_views(data.test.load(chosen), method.clip.image_size)
        labels, scores = data.test.labels[chosen], []
        for precision in ("32-true", "bf16-mixed"):
            with mixed(views.device, precision):
                text = method.text_features().float()
                image = method.image_features(method.image_trunk(views)).float()
            scores.append(method.logits(image, text))
        full, rough = (one.argmax(dim=1) for one in scores)
        gap = max(gap, float((scores[0] - scores[1]).abs().max()) / float(method.clip.scale))
        found["images"] += len(labels)
        found["same class"] += int((full == rough).sum())
        found["right in float32"] += int((full == labels).sum())
        found["right in bfloat16"] += int((rough == labels).sum())
    return {**found, "largest difference of a cosine": gap}


def results(folder: Path) -> dict[str, list[float]]:
    """Data set -> harmonic means of its runs, in percent."""
    found: dict[str, list[float]] = {}
    for path in sorted(folder.glob("*.json")):
        record = read_record(path)
        halves = (record["results"][half]["accuracy"] for half in ("base", "novel"))
        found.setdefault(record["dataset"]["name"], []).append(100 * harmonic_mean(*halves))
    return found


def main() -> None:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--runs", type=Path, nargs=2, help="folders of records: in bfloat16, in float32")
    options = made.parse_args()
    rows: list[dict[str, Any]] = [{"what": "zero-shot", **zero_shot()}]
    if options.runs:
        rough, full = (results(folder) for folder in options.runs)
        means = [[fmean(found[name]) for name in sorted(full)] for found in (rough, full)]
        gap, half = paired(*means)
        rows.append({"what": "harmonic mean of runs", "runs": sum(map(len, full.values()))})
        rows[-1] |= {"in float32": fmean(means[1]), "in bfloat16": fmean(means[0]), "difference": gap}
        rows[-1] |= {"95% interval": half}
    for row in rows:
        print(
            ", ".join(
                f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}"
                for name, value in row.items()
            )
        )


if __name__ == "__main__":
    main()
