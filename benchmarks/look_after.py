"""How well looking after data works (docs/look-after.md): planted wrong labels, and images of no class.

    python -m benchmarks.look_after                     # the twelve small tasks
    DEAR_DATA=FOLDER python -m benchmarks.look_after    # and photographs of Caltech-101, with lite

It writes benchmarks/results/wrong_labels.csv and none_of_these.csv, from which `python benchmarks/table.py`
writes the tables of the page. Everything is drawn at random by seed 1.
"""

import argparse
import csv
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import dear
from dear.curation.issues import REFUSED_SHARE
from dear.curation.outlier_fit import fit_outlier_model
from dear.data.dataset import Images
from dear.data.fewshot import items_by_class
from dear.data.images.decode import as_image
from dear.data.images.photos import PhotoImages
from dear.data.loading import load_dataset
from dear.data.settings import DataSettings
from dear.reading.remote import within
from dear.world.names import downstream_names
from dear.world.tasks import load_task

RESULTS = Path(__file__).parent / "results"
PHOTOGRAPHS = "caltech101"
EACH, WRONG = 16, 0.1
"""Training images of a class, and the share of labels that are made wrong."""
COUNTS, DRAWS = (2, 4, 8, 16), 5
"""Images of a class to tell "none of these" by, and the times that they are drawn."""


@dataclass(frozen=True)
class Pictures:
    """Labeled images of a data set, as `dear` takes them, and the model for them."""

    model: str
    names: Sequence[str]
    train: Sequence[Any]
    labels: Tensor
    test: Sequence[Any]
    test_labels: Tensor


def read(name: str) -> Pictures:
    """A task, or the photographs."""
    is_task = name != PHOTOGRAPHS
    data = load_task(name) if is_task else load_dataset(name, DataSettings())
    parts = [(_list_images(part), part.labels.cpu().long()) for part in (data.train, data.test)]
    return Pictures("tiny" if is_task else "lite", data.classnames, *parts[0], *parts[1])


def _list_images(images: Images) -> Sequence[Any]:
    if isinstance(images, PhotoImages):
        return [str(within(images.folder, path)) for path in images.paths]
    return [as_image(picture) for picture in images.load(torch.arange(len(images)))]


def draw(labels: Tensor, each: int, seed: int) -> list[int]:
    """So many images of each class, at random."""
    chance = random.Random(seed)
    classes = (items.tolist() for items in items_by_class(labels))
    return [item for items in classes for item in chance.sample(items, min(each, len(items)))]


def find_wrong(pictures: Pictures, seed: int) -> dict[str, Any]:
    """What `dear` lists of labels of which some are wrong, and of right ones, in percent."""
    items, chance = draw(pictures.labels, EACH, seed), random.Random(seed)
    right = pictures.labels[items].tolist()
    given, changed = [*right], {*chance.sample(range(len(items)), round(WRONG * len(items)))}
    for place in changed:
        given[place] = chance.choice([*{*range(len(pictures.names))} - {right[place]}])
    listed = [list_doubtful(pictures, items, labels, seed) for labels in (given, right)]
    found = listed[0] & changed
    return {
        "labels": len(items),
        "listed": len(listed[0]),
        "wrong of listed": 100 * len(found) / len(listed[0]) if listed[0] else None,
        "listed of wrong": 100 * len(found) / len(changed),
        "listed if none is wrong": 100 * len(listed[1]) / len(items),
    }


def list_doubtful(pictures: Pictures, items: Sequence[int], labels: Sequence[int], seed: int) -> set[int]:
    """The places of the labels that look wrong to `dear.find_label_issues`."""
    images = [pictures.train[item] for item in items]
    column = "path" if isinstance(images[0], str) else "image"
    data = {column: images, "label": [pictures.names[label] for label in labels]}
    issues = dear.find_label_issues(data, model=pictures.model, seed=seed)
    # Images in memory are named by their index, files by their path.
    place_of = {str(image) if column == "path" else str(place): place for place, image in enumerate(images)}
    return {place_of[str(path)] for path in issues[issues.is_label_issue].path}


def refuse(pictures: Pictures, seed: int) -> Iterable[dict[str, Any]]:
    """The shares of test images that look like none of the classes, in percent, in each draw: of the classes
    and, with every second class unknown, of unknown ones.
    """
    train, test = encode(pictures, pictures.train), encode(pictures, pictures.test)
    for each in COUNTS:
        for number in range(DRAWS):
            items = torch.tensor(draw(pictures.labels, each, seed + number))
            known = items[pictures.labels[items] % 2 == 0]
            row: dict[str, Any] = {"each": each, "draw": number}
            row["of the classes"] = share_refused(train, pictures.labels, items, test)
            of_unknown = test[pictures.test_labels % 2 == 1]
            row["of unknown classes"] = share_refused(train, pictures.labels, known, of_unknown)
            yield row


def encode(pictures: Pictures, images: Sequence[Any]) -> Tensor:
    """The unit features of images by the frozen backbone."""
    data = {"image": images} if not isinstance(images[0], str) else {"path": images}
    labels = pictures.labels if images is pictures.train else pictures.test_labels
    data["label"] = [pictures.names[label] for label in labels.tolist()]
    bundle = dear.fit(
        data, None, model=pictures.model, method="zero-shot", review=False, refuse=0, verbose=False
    )
    rows: Tensor = dear.Predictor(bundle).encode(list(images))
    return rows[:, 0].double().cpu()


def share_refused(train: Tensor, labels: Tensor, items: Tensor, tested: Tensor) -> float:
    """The share of tested images that look like none of the classes of some training images, in percent; 0 if
    these are too few.
    """
    classes, targets = labels[items].unique(return_inverse=True)
    fitted = fit_outlier_model(train[items], targets, len(classes))
    if fitted is None:
        return 0.0
    model, _ = fitted
    return 100 * float((model.rank(tested.float()) <= model.threshold(REFUSED_SHARE)).double().mean())


def write(name: str, rows: Sequence[dict[str, Any]]) -> None:
    with (RESULTS / f"{name}.csv").open("w", encoding="utf-8", newline="") as file:
        table = csv.DictWriter(file, [*rows[0]], lineterminator="\n")
        table.writeheader()
        for row in rows:
            table.writerow(
                {key: f"{cell:.6g}" if isinstance(cell, float) else cell for key, cell in row.items()}
            )


def parse_names(description: str | None) -> list[str]:
    """The data sets of a command line."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", nargs="*", help="tasks, or caltech101; by default what is there")
    has_photographs = DataSettings().data_root() is not None
    given: list[str] = parser.parse_args().data
    return given or [*downstream_names(), *[PHOTOGRAPHS] * has_photographs]


def main() -> None:
    wrong, none = list[dict[str, Any]](), list[dict[str, Any]]()
    for name in parse_names(__doc__):
        pictures = read(name)
        none += [{"data": name, **row} for row in refuse(pictures, seed=1)]
        wrong.append({"data": name, **find_wrong(pictures, seed=1)})
        print(*wrong[-1].values(), flush=True)
        write("none_of_these", none)
        write("wrong_labels", wrong)


if __name__ == "__main__":
    main()
