"""How good the choice of a method is: what `dear fit` would take, against all candidates on test images.

    python benchmarks/choose.py --data mixed-paints,worn-fabrics --shots 2,4,16 --seeds 1,2,3
    python benchmarks/choose.py --model lite --data caltech101
    python benchmarks/choose.py --data mixed-paints --named-only
    python benchmarks/choose.py --data fresh

Writes a line of JSON for each choice, then for each number of images the mean accuracies of what was taken
and of each candidate, and how far what was taken is below the best. With ``--named-only`` half of the classes
have no training images. ``fresh`` are eight tasks of the Attribute World that nothing was set on: four small
tasks with other values, looks and images, and four pairs of factors that no task has.
"""

import json
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from statistics import fmean
from typing import Any

import torch
from measure import cases, study_parser

from dear.adapters.choose import choose_method, list_candidates
from dear.backbone.load import load_clip
from dear.data.dataset import Dataset, assemble
from dear.data.fewshot import Subset
from dear.data.loading import load_dataset
from dear.data.world.factors import FACTOR_NAMES
from dear.data.world.names import bulk
from dear.data.world.tasks import make_task
from dear.evaluation.protocols.few_shot import FewShot
from dear.evaluation.resolve import MethodSetup
from dear.evaluation.run_context import RunContext
from dear.evaluation.trial import Trial
from dear.roles.packaged import find_role_table

ALIKE = {
    "mixed-paints": {"values": {"color": 10}, "classes": 10},
    "turned-tools": {"values": {"object": 10}, "classes": 10},
    "stamped-tiles": {"values": {"texture": 7, "object": 10}},
    "travel-posters": {"values": {"color": 7, "object": 7, "place": 7}},
}
"""Small tasks, and what a fresh one has in place of theirs, beside the seed."""
PAIRS: list[dict[str, Any]] = [
    {"values": {"color": 8, "place": 10}, "own": [["hue", 0.8], ["dusk", 0.6]]},
    {"values": {"color": 8, "object": 8}, "own": [["hue", 0.8], ["turned", 0.27]]},
    {"values": {"shape": 8, "texture": 8}, "own": [["turned", 0.3], ["stretch", 0.9]]},
    {"values": {"object": 8, "color": 6, "shape": 6}, "own": [["turned", 0.27], ["cast", 1.0]]},
]
"""Factors that no small task of the same looks has; the novel half of the classes has first values apart."""
ORDER = ["texture", "color", "shape", "object", "place"]
"""Of words in the name of a class."""
SEED = 1001
"""Of the first fresh task; each other has the next."""


def main() -> None:
    made = study_parser(__doc__, "2,4,8,16")
    made.add_argument("--named-only", action="store_true")
    options = made.parse_args()
    clip = load_clip(options.model)
    rows = defaultdict[int, list[dict[str, float]]](list)
    for dataset in draw_tasks() if options.data == "fresh" else map(load_dataset, options.data.split(",")):
        given = without_half(dataset) if options.named_only else dataset
        context = RunContext(clip, find_role_table(clip))
        for shots, seed in cases(options):
            row = measure(context, given, shots, seed)
            print(json.dumps({"data": dataset.name, "shots": shots, "seed": seed, **row}), flush=True)
            rows[shots].append(row["tested"])
    for shots, tested in rows.items():
        below = [max(row.values()) - row["auto"] for row in tested]
        means = {name: round(fmean(row[name] for row in tested), 1) for name in tested[0]}
        print(
            f"{shots} images: {means}, below the best {fmean(below):.2f} on average, {max(below):.1f} at most"
        )


def draw_tasks() -> Iterator[Dataset]:
    """The fresh tasks."""
    known = {row["name"]: row for row in bulk("tasks")["tasks"]}
    rows = [{**known[name], **other, "name": f"fresh-{name}"} for name, other in ALIKE.items()]
    for pair in PAIRS:
        factors = [*pair["values"]]
        rest = [name for name in FACTOR_NAMES if name not in factors][:2]
        rows.append(
            {"name": "fresh-" + "-".join(factors), "title": " ".join(factors), "factors": factors}
            | {"pattern": " ".join(f"{{{name}}}" for name in sorted(factors, key=ORDER.index))}
            | {"template": "a photo of something {}." if factors[-1] == "place" else "a photo of a {}."}
            | {"apart": factors[:1], "classes": 16, "shift": [], "habits": [[name, 0.8] for name in rest]}
            | pair
        )
    for seed, row in enumerate(rows, SEED):
        task = make_task({**row, "seed": seed, "image_seed": seed, "version": bulk("tasks")["version"]})
        facts = task.name, task.title, task.classnames, (task.template,)
        yield assemble(*facts, task.train, task.val, task.test, world=True)


def measure(context: RunContext, dataset: Dataset, shots: int, seed: int) -> dict[str, object]:
    """What is chosen, and the accuracy of all candidates on test images, in percent."""
    choice, classes = choose_method(context, dataset, shots, seed), range(len(dataset.classnames))
    tested = {}
    left_out = {part.method: 100 * part.accuracy for part in choice.candidates if part.accuracy is not None}
    for name in left_out or list_candidates(context):
        run = context.resolve(FewShot(), [dataset], MethodSetup(name), seed=seed, shots=shots)
        trial = Trial(context, run)
        trial.train(classes)
        tested[name] = 100 * trial.test(dataset, classes)["accuracy"]
    return {"chosen": choice.method, "left_out": left_out, "tested": tested | {"auto": tested[choice.method]}}


def without_half(dataset: Dataset) -> Dataset:
    """The data set without the training images of its second half of classes."""
    few = dataset.train.labels < len(dataset.classnames) / 2
    return replace(dataset, train=Subset(dataset.train, few.nonzero().flatten()), allow_fewer=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
