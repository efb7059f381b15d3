r"""What bfloat16 changes: scores and predictions, roles of heads, and the results of runs.

    python benchmarks/bfloat16.py
    python benchmarks/bfloat16.py --roles 10000 --wide
    python benchmarks/bfloat16.py --runs runs/bf16-mixed runs/32-true

First, zero-shot of the tiny CLIP on 100 test images of each world task, in float32 and under autocast. With
--roles, its heads' roles found from that many scenes in both. With --wide, scores of 16 of these images and
the names of 50 classes by ViT-B/16 with random weights. With --runs, records of the same runs in both: the
mean difference over data sets of each one's mean over seeds, with its 95% interval (Student's t).
They are made by, for each precision and seed,

    dear run base-to-novel --methods dear --data world --seeds 1 --train.precision bf16-mixed \
      --out runs/bf16-mixed
"""

import argparse
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize

from dear.backbone.choice import Precision
from dear.backbone.head_contributions import Contributions
from dear.backbone.load import load_clip
from dear.backbone.precision import mixed
from dear.data.images.transforms import eval_views
from dear.data.loading import load_dataset
from dear.data.world.render import WorldScenes
from dear.data.world.tasks import downstream_names
from dear.evaluation.records import read_record
from dear.evaluation.schema import harmonic_mean
from dear.methods.registry import frozen_clip
from dear.report.intervals import paired
from dear.roles import decompose
from dear.roles.discover import discover
from dear.roles.phrases import WORLD, load_pool

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
        views = eval_views(data.test.load(chosen), method.clip.preprocess)
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


def roles(images: int) -> dict[str, Any]:
    """How many heads keep their role, concept and first phrase if contributions are computed in bfloat16."""
    clip, exact = load_clip("tiny"), decompose.head_contributions

    def rough(*given: Any) -> Contributions:
        with mixed(torch.device("cpu"), "bf16-mixed"):
            found = exact(*given)
        return replace(found, heads=found.heads.float())

    tables = []
    for computed in (exact, rough):
        decompose.head_contributions = computed
        tables.append(discover(clip, WorldScenes(images, clip.image_size), load_pool(WORLD)).heads)
    decompose.head_contributions = exact
    pairs = list(zip(*tables, strict=True))
    return {
        "scenes": images,
        "heads": len(pairs),
        "same role": sum(one.role == other.role for one, other in pairs),
        "same concept": sum(one.concept == other.concept for one, other in pairs),
        "same first phrase": sum(one.phrases[0] == other.phrases[0] for one, other in pairs),
        "same phrases": sum(one.phrases == other.phrases for one, other in pairs),
    }


@torch.no_grad()
def wide() -> dict[str, Any]:
    """The largest difference of a logit (100 times a cosine) of ViT-B/16 with random weights."""
    clip = load_clip("ViT-B-16", "random:0")
    names = [name for task in downstream_names() for name in load_dataset(task).classnames][:50]
    test = load_dataset(downstream_names()[0]).test
    chosen = torch.linspace(0, len(test) - 1, 16).long()
    views = clip.normalize_pixels(eval_views(test.load(chosen), clip.preprocess))

    def logits(precision: Precision) -> Tensor:
        with mixed(views.device, precision):
            image, text = (
                clip.encode_image(views),
                clip.encode_text([f"a photo of a {name}" for name in names]),
            )
        return 100 * normalize(image.float(), dim=-1) @ normalize(text.float(), dim=-1).T

    gap = (logits("32-true") - logits("bf16-mixed")).abs()
    return {"images": len(views), "classes": len(names), "largest difference of a logit": float(gap.max())}


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
    made.add_argument(
        "--roles", type=int, metavar="SCENES", help="find the heads' roles from these many scenes"
    )
    made.add_argument("--wide", action="store_true", help="scores of ViT-B/16 with random weights")
    options = made.parse_args()
    rows: list[dict[str, Any]] = [{"what": "zero-shot", **zero_shot()}]
    if options.roles:
        rows.append({"what": "roles", **roles(options.roles)})
    if options.wide:
        rows.append({"what": "ViT-B/16, random weights", **wide()})
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
