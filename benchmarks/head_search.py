"""Search by what heads write, on the Attribute World: which feature finds which factor, by image and by word.

    python benchmarks/head_search.py                       # twelve tasks, both tables; some minutes
    python benchmarks/head_search.py --tasks travel-posters --roles discovered

By image: percentage of the ten nearest test images that share the query's factor, mean over the tasks in
which the factor varies; every test image is a query, and the means are over the same images, as in an index
of them. "class, centred" shows what centring alone does. By word: percentage of the ten images nearest to the
name of a factor's value that have it, among scenes that no task or training has. No label is used, and
nothing is chosen.
"""

import argparse
from collections.abc import Iterator
from statistics import fmean

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import normalize

from dear.backbone.clip import Clip
from dear.backbone.load import load_clip
from dear.backbone.preprocess import Preprocess
from dear.data.dataset import Images
from dear.data.images.transforms import eval_views
from dear.data.world.factors import FACTOR_NAMES, FACTORS
from dear.data.world.render import WorldScenes
from dear.data.world.tasks import load_task
from dear.evaluation.experiment import data_names
from dear.retrieval.encoder import HeadEncoder, head_facts
from dear.retrieval.world import chance_by_factor, nearest, precision_by_factor
from dear.roles.packaged import role_table

FOUND = 10
SEED = 3_000_017  # of the scenes
CENTRED = "class, centred"


def views(
    images: Images, preprocess: Preprocess, batch: int = 120
) -> Iterator[Float[Tensor, "batch 3 size size"]]:
    for start in range(0, len(images), batch):
        yield eval_views(images.load(torch.arange(start, min(start + batch, len(images)))), preprocess)


def encoded(clip: Clip, kind: str, images: Images) -> tuple[HeadEncoder, Float[Tensor, "item feature embed"]]:
    """The encoder whose means are over the images, and their features."""
    seen = [*views(images, clip.preprocess)]
    encoder = HeadEncoder(clip, head_facts(clip, role_table(clip, kind), seen))
    return encoder, torch.cat([encoder.of_views(part) for part in seen])


def by_image(clip: Clip, kind: str, task: str) -> tuple[dict[str, dict[str, float]], dict[str, float]]:
    """Precision at ten by feature and factor on a task, and that of random neighbours."""
    images = load_task(task).test
    encoder, features = encoded(clip, kind, images)
    rows = dict(zip(encoder.features, features.unbind(dim=1), strict=True))
    rows[CENTRED] = normalize(features[:, 0] - features[:, 0].mean(dim=0), dim=-1)
    return {
        name: precision_by_factor(nearest(each, FOUND), images.factors, FACTOR_NAMES)
        for name, each in rows.items()
    }, chance_by_factor(images.factors, FACTOR_NAMES)


def by_word(clip: Clip, kind: str, count: int) -> dict[str, dict[str, float]]:
    """Precision at ten of the names of each factor's values, by the class and by the factor's own feature."""
    scenes = WorldScenes(count, clip.image_size, SEED)
    encoder, features = encoded(clip, kind, scenes)
    found: dict[str, dict[str, float]] = {}
    for column, name in enumerate(FACTOR_NAMES):
        words = encoder.texts(FACTORS[name].values)
        for feature in ("class", name):
            if feature in encoder.features:
                at = encoder.features.index(feature)
                best = (features[:, at] @ words[:, at].T).topk(FOUND, dim=0).indices
                right = scenes.factors[best, column] == torch.arange(len(FACTORS[name].values))
                found.setdefault("class" if feature == "class" else "own feature", {})[name] = float(
                    right.double().mean()
                )
    return found


def line(name: str, row: dict[str, float]) -> None:
    values = (f"{100 * row[one]:.1f}" if one in row else "-" for one in FACTOR_NAMES)
    print(f"| {name} | " + " | ".join(values) + " |")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tasks", default="world", help="tasks, or world for all twelve")
    parser.add_argument("--roles", nargs="+", default=["ground-truth", "discovered"])
    parser.add_argument("--scenes", type=int, default=1500)
    given = parser.parse_args()
    torch.set_num_threads(1)
    clip = load_clip("tiny")
    head = "| " + " | ".join(("feature", *FACTOR_NAMES)) + " |\n| --- |" + " ---: |" * len(FACTOR_NAMES)
    for kind in given.roles:
        runs = [by_image(clip, kind, task) for task in data_names(given.tasks.split(","))]
        print(f"\nBy image, {kind} roles ({len(runs)} tasks)\n\n{head}")
        features = ["class", CENTRED, *(name for name in FACTOR_NAMES if name in runs[0][0])]
        for name in features:
            line(name, mean([(found[name], chance) for found, chance in runs]))
        line("(chance)", mean([(chance, chance) for _, chance in runs]))
        print(f"\nBy word, {kind} roles ({given.scenes} scenes)\n\n{head}", flush=True)
        for name, row in by_word(clip, kind, given.scenes).items():
            line(name, row)


def mean(runs: list[tuple[dict[str, float], dict[str, float]]]) -> dict[str, float]:
    """Over the tasks in which a factor varies."""
    return {
        factor: fmean(found[factor] for found, chance in runs if chance[factor] < 1)
        for factor in FACTOR_NAMES
        if any(chance[factor] < 1 for _, chance in runs)
    }


if __name__ == "__main__":
    main()
