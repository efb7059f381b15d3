"""Does the promised accuracy hold? `python -m benchmarks.zoo.promise`: digits of others, so many that what is
measured hardly varies.

`dear fit` gets nine images of each digit, in a dozen draws that share none, and is measured on hundreds that
are in no draw. It writes benchmarks/results/promise.csv.
"""

import argparse
import csv
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

import dear
from benchmarks.zoo import packages
from benchmarks.zoo.packages import Packages
from benchmarks.zoo.pictures import as_png, from_values, stream
from benchmarks.zoo.trial import AT_ONCE, fold

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks/results/promise.csv"
EACH, DRAWS, TESTED = 9, 12, 60
"""Images of a digit in a draw, draws, and images of a digit that are measured on."""


def read_digits(of: Packages, name: str) -> list[np.ndarray]:
    """The pictures of each digit, from 0 to 255."""
    if name == "digits8":
        from sklearn.datasets import load_digits

        digits = load_digits()
        return [digits.images[digits.target == digit] / 16 * 255 for digit in range(10)]
    folder = of(packages.DIGITS) / "package/src/digits"
    texts = [(folder / f"{digit}.json").read_text() for digit in range(10)]
    return [np.array(json.loads(text)["data"]).reshape(-1, 28, 28) * 255 for text in texts]


def write_part(folder: Path, digits: list[np.ndarray], orders: list[np.ndarray], part: slice) -> Path:
    """Write a part of each digit's pictures, in an order, as folders of classes."""
    for digit, (pictures, order) in enumerate(zip(digits, orders, strict=True)):
        (folder / str(digit)).mkdir(parents=True)
        for item in order[part]:
            (folder / str(digit) / f"{item}.png").write_bytes(as_png(from_values(pictures[item])).content)
    return folder


@torch.no_grad()
def measure(predictor: dear.Predictor, tested: Path, read: dict[str, torch.Tensor]) -> float:
    """The share of images that are right, in percent; ``read`` keeps their features by method, for the
    backbone is the same in all draws.
    """
    paths, vocabulary = sorted(tested.glob("*/*.png")), predictor.own_vocabulary
    if predictor.bundle.method not in read:
        parts = [
            vocabulary.image_features(
                torch.stack([predictor.preprocess(path) for path in paths[at : at + AT_ONCE]]), frozen=True
            )
            for at in range(0, len(paths), AT_ONCE)
        ]
        read[predictor.bundle.method] = torch.cat([part.transpose(0, 1) for part in parts])
    ranked = predictor.rank(read[predictor.bundle.method], vocabulary, 1)
    names = [candidates[0].name for candidates, *_ in ranked]
    return 100 * float(np.mean([fold(n) == fold(p.parent.name) for n, p in zip(names, paths, strict=True)]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--folder", type=Path, default=ROOT / "zoo", help="for packages")
    parser.add_argument("--model", default="lite")
    options = parser.parse_args()
    with RESULTS.open("w", encoding="utf-8", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["set", "model", "draw", "method", "promised", "low", "high", "measured"])
        for name in ("digits8", "mnist28"):
            for row in try_digits(read_digits(Packages(options.folder / "packages"), name), options.model):
                rows.writerow([name, options.model, *row])
                file.flush()
                print(name, *row, flush=True)


def try_digits(digits: list[np.ndarray], model: str) -> Iterator[list[str]]:
    """The draw, the method, the promise with its interval and what is measured, in percent, of each draw."""
    orders = [stream(digit).permutation(len(of_digit)) for digit, of_digit in enumerate(digits)]
    read = dict[str, torch.Tensor]()
    with tempfile.TemporaryDirectory() as scratch:
        last = slice(DRAWS * EACH, DRAWS * EACH + TESTED)
        tested = write_part(Path(scratch) / "tested", digits, orders, last)
        for draw in range(DRAWS):
            part = slice(draw * EACH, (draw + 1) * EACH)
            to_fit = write_part(Path(scratch) / str(draw), digits, orders, part)
            bundle = dear.fit(to_fit, model=model, review=False, verbose=False)
            assert bundle.scores is not None
            assert bundle.scores.interval is not None
            promise = bundle.scores.accuracy, *bundle.scores.interval
            measured = measure(dear.Predictor(bundle), tested, read)
            numbers = [*(100 * share for share in promise), measured]
            yield [str(draw), bundle.method, *(f"{number:.1f}" for number in numbers)]


if __name__ == "__main__":
    main()
