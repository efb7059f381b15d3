"""What more images give (docs/look-after.md): images without labels, and the images that `suggest` picks.

    python -m benchmarks.more_images                     # the twelve small tasks
    DEAR_DATA=FOLDER python -m benchmarks.more_images    # and photographs of Caltech-101, with lite

It writes benchmarks/results/unlabeled.csv and suggested.csv, from which `python benchmarks/table.py` writes
the tables of the page. The method is `dear+`, and accuracies are of the test images, in percent.
"""

import random
from collections.abc import Iterator, Sequence
from typing import Any

import dear
from benchmarks.look_after import Pictures, draw, parse_names, read, write

LABELED, SEEDS = (2, 4), (1,)
"""Labeled images of a class that images without labels are added to."""
FIRST, ROUNDS = 2, 4
"""Labeled images of a class at first, and how often as many as there are classes are added."""


def add_unlabeled(pictures: Pictures, seed: int) -> Iterator[dict[str, Any]]:
    """Accuracy with some labeled images, and with the other training images as images without labels too."""
    for each in LABELED:
        items = draw(pictures.labels, each, seed)
        others = [pictures.train[item] for item in find_rest(pictures, items)]
        without, also = fit(pictures, items, seed), fit(pictures, items, seed, others)
        yield {
            "labeled": each,
            "seed": seed,
            "without labels": len(others),
            "without": measure_accuracy(pictures, without),
            "with": measure_accuracy(pictures, also),
            "used": int(also.training.unlabeled is not None and bool(also.training.unlabeled.weight)),
        }


def label_more(pictures: Pictures, seed: int) -> dict[str, Any]:
    """Accuracy after some rounds in which images are labeled that are suggested, or drawn at random."""
    accuracies = dict[str, float]()
    for way in ("suggested", "random"):
        items, chance = draw(pictures.labels, FIRST, seed), random.Random(seed)
        for _ in range(ROUNDS):
            rest = find_rest(pictures, items)
            if way == "suggested":
                items = items + suggest(pictures, items, rest, seed)
            else:
                items = items + chance.sample(rest, len(pictures.names))
        accuracies[way] = measure_accuracy(pictures, fit(pictures, items, seed))
    return {"seed": seed, **accuracies}


def suggest(pictures: Pictures, items: Sequence[int], rest: Sequence[int], seed: int) -> list[int]:
    """As many of the rest as there are classes: those that a fit to the items is least sure of."""
    images, count = [pictures.train[item] for item in rest], len(pictures.names)
    place_of = {str(image) if isinstance(image, str) else str(at): at for at, image in enumerate(images)}
    suggestions = dear.Predictor(fit(pictures, items, seed)).suggest(images, count)
    chosen = [rest[place_of[str(one.image)]] for one in suggestions if not one.new_class]
    return chosen[:count]


def find_rest(pictures: Pictures, items: Sequence[int]) -> list[int]:
    """The training images that are not among the items."""
    return sorted({*range(len(pictures.train))} - {*items})


def fit(pictures: Pictures, items: Sequence[int], seed: int, others: Sequence[Any] = ()) -> dear.Bundle:
    """`dear+`, fitted to the labeled items, and to others without labels."""
    images = [pictures.train[item] for item in items]
    data = {
        "path" if isinstance(images[0], str) else "image": images,
        "label": [pictures.names[label] for label in pictures.labels[[*items]].tolist()],
    }
    return dear.fit(
        data,
        None,
        method="dear+",
        model=pictures.model,
        seed=seed,
        unlabeled=[*others] or None,
        dataset=dear.DataSettings(test_share=0),
        review=False,
        verbose=False,
    )


def measure_accuracy(pictures: Pictures, bundle: dear.Bundle) -> float:
    """Of the test images, in percent."""
    predicted = [result.best.name for result in dear.Predictor(bundle).predict([*pictures.test])]
    right = [pictures.names[label] for label in pictures.test_labels.tolist()]
    return 100 * sum(map(str.__eq__, predicted, right)) / len(right)


def main() -> None:
    unlabeled, suggested = list[dict[str, Any]](), list[dict[str, Any]]()
    for name in parse_names(__doc__):
        pictures = read(name)
        for seed in SEEDS:
            unlabeled += [{"data": name, **row} for row in add_unlabeled(pictures, seed)]
            suggested.append({"data": name, **label_more(pictures, seed)})
            print(*suggested[-1].values(), flush=True)
            write("unlabeled", unlabeled)
            write("suggested", suggested)


if __name__ == "__main__":
    main()
