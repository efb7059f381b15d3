"""How good the choice of a method is: what `dear fit` would take, against all candidates on test images.

    python benchmarks/choose.py --data mixed-paints,worn-fabrics --shots 2,4,16 --seeds 1,2,3
    python benchmarks/choose.py --model lite --data caltech101
    python benchmarks/choose.py --data mixed-paints --named-only

Writes a line of JSON for each choice, then for each number of images the mean accuracies of what was taken
and of each candidate, and how far what was taken is below the best. With ``--named-only`` half of the classes
have no training images.
"""

import argparse
import json
from collections import defaultdict
from dataclasses import replace
from statistics import fmean

import torch

from dear.adapters.choose import choose_method, list_candidates
from dear.backbone.load import load_clip
from dear.data.dataset import Dataset
from dear.data.fewshot import Subset
from dear.data.loading import load_dataset
from dear.evaluation.protocols.few_shot import FewShot
from dear.evaluation.resolve import MethodSetup
from dear.evaluation.run_context import RunContext
from dear.evaluation.trial import Trial
from dear.roles.packaged import find_role_table


def main() -> None:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--data", required=True)
    made.add_argument("--model", default="tiny")
    made.add_argument("--shots", default="2,4,8,16")
    made.add_argument("--seeds", default="1,2,3")
    made.add_argument("--named-only", action="store_true")
    options = made.parse_args()
    clip = load_clip(options.model)
    rows = defaultdict[int, list[dict[str, float]]](list)
    for dataset in map(load_dataset, options.data.split(",")):
        given = without_half(dataset) if options.named_only else dataset
        context = RunContext(clip, find_role_table(clip))
        for shots in map(int, options.shots.split(",")):
            for seed in map(int, options.seeds.split(",")):
                row = measure(context, given, shots, seed)
                print(json.dumps({"data": dataset.name, "shots": shots, "seed": seed, **row}), flush=True)
                rows[shots].append(row["tested"])
    for shots, tested in rows.items():
        below = [max(row.values()) - row["auto"] for row in tested]
        means = {name: round(fmean(row[name] for row in tested), 1) for name in tested[0]}
        print(
            f"{shots} images: {means}, below the best {fmean(below):.2f} on average, {max(below):.1f} at most"
        )


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
