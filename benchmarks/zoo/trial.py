"""A set tried: what `dear fit` promises, and what it and its rivals reach on the pictures kept aside."""

import json
import os
import resource
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.zoo.pictures import list_pictures
from benchmarks.zoo.rivals import score_rivals
from dear.adapters.predictor import Predictor

DEAR = (sys.executable, "-c", "import sys; from dear.cli.main import main; sys.exit(main(sys.argv[1:]))")
AT_ONCE = 16
Row = dict[str, str | int | float]


@dataclass(frozen=True)
class Promise:
    """The accuracy that a bundle says to expect of new images, with its interval at 95%, in percent."""

    accuracy: float
    low: float
    high: float


def read_promise(config: dict[str, Any]) -> Promise | None:
    """What a bundle's config.json states: the accuracy, cross-validated or on test images."""
    if (scores := config["scores"]) is None:
        return None
    return Promise(*(100 * share for share in (scores["accuracy"], *scores["interval"])))


def try_set(folder: Path, name: str, model: str, bundle: Path) -> Row:
    """Fit to folder/data/NAME with defaults, and measure on folder/held/NAME; a row of the results."""
    to_fit, kept_aside = (list_pictures(folder / side / name) for side in ("data", "held"))
    classes = [path.parent.name for path in to_fit]
    row: Row = {"set": name, "model": model, "classes": len({*classes}), "images": len(to_fit)}
    row["kept aside"] = len(kept_aside)
    data = folder / "data" / name
    error, row["CPU s"] = run_dear(["fit", data, "--model", model, "--out", bundle, "--overwrite"])
    if error:
        return row | {"failed": error}
    config = json.loads((bundle / "config.json").read_text())
    row["method"] = config["method"]
    if (promise := read_promise(config)) is not None:
        row |= {"promised": promise.accuracy, "low": promise.low, "high": promise.high}
    predictor = Predictor(bundle)
    features, _ = read_features(predictor, to_fit)
    others, predicted = read_features(predictor, kept_aside)
    right = [fold(label) == fold(path.parent.name) for label, path in zip(predicted, kept_aside, strict=True)]
    row["dear fit"] = 100 * float(np.mean(right))
    labels = np.array([path.parent.name for path in kept_aside])
    return row | score_rivals(features, np.array(classes), others, labels)


def run_dear(words: Sequence[str | Path]) -> tuple[str, float]:
    """Run a command: the last line of its error, empty if it has none, and the processor seconds it took."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    result = subprocess.run([*DEAR, *words], capture_output=True, text=True, env={**os.environ})
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    lines = result.stderr.strip().splitlines() or [f"exit code {result.returncode}"]
    return (lines[-1] if result.returncode else ""), seconds


@torch.no_grad()
def read_features(predictor: Predictor, paths: Sequence[Path]) -> tuple[np.ndarray, list[str]]:
    """The frozen backbone's features of images, and their predicted classes."""
    vocabulary, features, predicted = predictor.own_vocabulary, list[np.ndarray](), list[str]()
    for first in range(0, len(paths), AT_ONCE):
        pixels = torch.stack([predictor.preprocess(path) for path in paths[first : first + AT_ONCE]])
        read = vocabulary.image_features(pixels, frozen=True).transpose(0, 1)
        features.append(read[:, -1].float().numpy())
        predicted += [candidates[0].name for candidates, *_ in predictor.rank(read, vocabulary, 1)]
    return np.concatenate(features), predicted


def fold(name: str) -> str:
    """The letters and digits of a class's name, which is a folder's in other spelling."""
    return "".join(filter(str.isalnum, name)).lower()
