"""Compare the concepts of a role table with the factors that heads of a CLIP of the Attribute World write:
`python -m tools.probe`, from a checkout.
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from dear.backbone.clip import Clip
from dear.backbone.load import load_clip
from dear.cli.output import PrintableConsole, table
from dear.cli.progress import StepProgress
from dear.data.world.factors import FACTOR_NAMES, SIZES
from dear.data.world.render import WorldScenes
from dear.errors import SettingsError
from dear.progress import Progress, silent
from dear.roles.decompose import decompose
from dear.roles.packaged import role_table
from tools import end_with
from tools.ground_truth import explained_variance


def probe_accuracy(
    values: Float[Tensor, "item embed"], labels: Int[Tensor, "item"], classes: int, *, ridge: float = 1e-2
) -> float:
    """Accuracy (fraction) on the second half of the items of a linear classifier fitted on the first half.

    Least squares onto one-hot labels; ``ridge`` times the mean variance is added to the diagonal.
    """
    half = len(values) // 2
    train, test = values[:half].double(), values[half:].double()
    mean = train.mean(dim=0)
    centred = train - mean
    gram = centred.T @ centred
    gram = gram + ridge * gram.diagonal().mean() * torch.eye(len(gram), dtype=torch.float64)
    targets = torch.nn.functional.one_hot(labels[:half], classes).double()
    weights = torch.linalg.solve(gram, centred.T @ (targets - targets.mean(dim=0)))
    guesses = ((test - mean) @ weights + targets.mean(dim=0)).argmax(dim=1)
    return float((guesses == labels[half:]).double().mean())


@dataclass(frozen=True)
class Reading:
    """The information about the factors in one head's contributions.

    Attributes:
        explained: Share (fraction) of its variance that each factor explains (epsilon squared).
        readings: Accuracy of a linear probe of each factor, rescaled so that 0 is chance and 1 is perfect.
    """

    explained: dict[str, float]
    readings: dict[str, float]


def probe_head(values: Float[Tensor, "item embed"], factors: Int[Tensor, "item 5"]) -> Reading:
    """Explained variance and linear probe of each factor, for one head's contributions."""
    explained, readings = {}, {}
    for column, (name, size) in enumerate(zip(FACTOR_NAMES, SIZES, strict=True)):
        explained[name] = explained_variance(values, factors[:, column], size)
        accuracy = probe_accuracy(values, factors[:, column], size)
        readings[name] = (accuracy - 1 / size) / (1 - 1 / size)
    return Reading(explained, readings)


def probe_heads(
    clip: Clip,
    scenes: WorldScenes,
    layers: Sequence[int],
    *,
    progress: Progress = silent,
) -> dict[tuple[int, int], Reading]:
    """Readings of all heads of some layers; contributions are stored in a temporary file."""
    with TemporaryDirectory() as folder:
        found = decompose(clip, scenes, layers, keep=Path(folder) / "contributions.npy")
        assert found.values is not None
        places = [
            (at, layer, head) for at, layer in enumerate(found.layers) for head in range(clip.image.heads)
        ]
        readings = {}
        for done, (at, layer, head) in enumerate(places, start=1):
            values = torch.from_numpy(np.array(found.values[:, at, head]))
            readings[layer, head] = probe_head(values, scenes.factors)
            progress("heads", done, len(places))
    return readings


def best(readings: dict[str, float], names: Sequence[str] = FACTOR_NAMES) -> str:
    """The factor with the highest probe accuracy."""
    return max(names, key=lambda name: readings[name])


def main(words: Sequence[str] | None = None) -> None:
    """Print, for each head of the table, its concept, the factor that explains most of its variance and how
    well a linear probe reads each factor; then how often they agree.
    """
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="tiny", help="the CLIP of the Attribute World")
    parser.add_argument("--pretrained", help="a folder of tools.pretrain; the package's weights by default")
    parser.add_argument("--roles", type=Path, help="a role table: a file, discovered or ground-truth")
    parser.add_argument("--images", type=int, default=6000, help="scenes; a probe is fitted on half of them")
    options = parser.parse_args(words)
    if options.images < 100:
        raise SettingsError(f"images is {options.images}: a probe needs at least 100.")
    clip = load_clip(options.model, options.pretrained)
    roles = role_table(clip, options.roles)
    roles.check(clip.identity)
    layers = sorted({head.layer for head in roles.heads})
    with StepProgress() as progress:
        readings = probe_heads(clip, WorldScenes(options.images, clip.image_size), layers, progress=progress)
    rows: list[list[object]] = []
    factor_heads = agree_explained = agree_read = 0
    for head in roles.heads:
        reading = readings[head.layer, head.head]
        explained = best(reading.explained)
        share = f"{explained} {100 * reading.explained[explained]:.0f}%"
        probes = [f"{100 * reading.readings[name]:.0f}" for name in FACTOR_NAMES]
        rows.append([head.layer, head.head, head.role, head.concept, share, *probes])
        if head.concept in FACTOR_NAMES:
            factor_heads += 1
            agree_explained += head.concept == explained
            agree_read += head.concept == best(reading.readings)
    title = f"{roles.source}; linear probes in percent of the way from chance to perfect"
    console = PrintableConsole(highlight=False)
    console.print(table(title, ("layer", "head", "role", "concept", "most explained", *FACTOR_NAMES), rows))
    console.print(
        f"{len(rows)} heads; the concept of {factor_heads} is one of the world's factors. Among these it is "
        f"the factor that explains most variance for {agree_explained}, and the one that a linear probe "
        f"reads out best for {agree_read}."
    )


if __name__ == "__main__":
    end_with(main)
