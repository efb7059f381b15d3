"""A role table from the images at hand, when a CLIP has none: how long it takes, and how far to trust it."""

import time
import warnings
from collections.abc import Callable

import torch

from dear.backbone.choice import TINY
from dear.backbone.clip import Clip
from dear.data.dataset import Dataset
from dear.data.fewshot import Subset
from dear.errors import DataError
from dear.progress import Progress, silent
from dear.roles.decompose import analysed_layers, decompose, head_rank
from dear.roles.discover import discover, embed_text
from dear.roles.layers import SAMPLE, layer_curve
from dear.roles.phrases import GENERAL, WORLD, Pool, load_pool
from dear.roles.settings import RoleSettings
from dear.roles.table import RoleTable
from dear.roles.trust import doubts
from dear.roles.world import spread

DISCOVER = "discover"
MOST = 10_000
"""Images that are used at most, as many as `dear roles discover` uses."""
SOME = 1000
"""Fewer images than this are told of [ours]: roles were found to be stable for 10,000
(docs/roles-study.md).
"""
TIMED, WORDS = 4, 16
CLUSTERS = 60.0
"""Seconds for what does not grow with the images, chiefly clusters and their map [ours]: 125 for 48 heads of
ViT-B/16 on a core that was shared with other work.
"""


def usual_pool(clip: Clip) -> Pool:
    """The phrases that roles of a CLIP are found with if none are named."""
    return load_pool(WORLD if clip.identity.model == TINY else GENERAL)


def discover_at_hand(clip: Clip, dataset: Dataset, progress: Progress = silent) -> RoleTable:
    """The role table of a CLIP from a data set's training images, without their labels, with the usual
    settings.

    Warns, in a line each, of few images and of a table that is not to be trusted (`dear.roles.trust.doubts`).
    Raises DataError for fewer images than a head has dimensions, and the errors of `discover`.
    """
    seen = _seen(clip, dataset)
    pool = usual_pool(clip)
    table = discover(clip, seen, pool, facts={"data": dataset.name}, progress=progress)
    curve = layer_curve(clip, seen, analysed_layers(clip), progress=progress)
    found = doubts(table, curve)
    if len(seen) < SOME:
        found.insert(0, f"{len(seen)} images are few to find roles from (below {SOME}).")
    for line in found:
        warnings.warn(f"roles: {line}", stacklevel=2)
    return table


@torch.no_grad()
def seconds_at_hand(clip: Clip, dataset: Dataset) -> float:
    """An estimate of how long `discover_at_hand` takes: a few images and phrases are timed. Raises DataError
    for too few images.
    """
    seen, pool = _seen(clip, dataset), usual_pool(clip)
    few, layers = Subset(seen, torch.arange(TIMED)), analysed_layers(clip)
    an_image = _timed(lambda: decompose(clip, few, layers)) / TIMED
    of_curve = _timed(lambda: layer_curve(clip, few, layers)) / TIMED
    a_phrase = _timed(lambda: embed_text(clip, pool.phrases[:WORDS])) / WORDS
    return len(seen) * an_image + min(len(seen), SAMPLE) * of_curve + len(pool) * a_phrase + CLUSTERS


def _timed(work: Callable[[], object]) -> float:
    """Seconds that some work takes."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def _seen(clip: Clip, dataset: Dataset) -> Subset:
    """The images to use. Raises DataError for too few."""
    least = head_rank(clip, convention=RoleSettings().convention)
    if len(dataset.train) < least:
        raise DataError(
            f"{dataset.name} has {len(dataset.train)} training images, too few to find the roles of heads: "
            f"at least {least}, better {SOME} or more. Find them on other images with `dear roles discover "
            "--data IMAGES` and give the table with --roles FILE."
        )
    return Subset(dataset.train, spread(len(dataset.train), MOST))
