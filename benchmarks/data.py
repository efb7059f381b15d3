"""Epoch time with and without the decode cache, and resident memory: python benchmarks/data.py DATA

Loads every training image of a data set once per epoch, in batches in random order, and makes random
views of it. Prints the seconds of each epoch (the first one fills the cache), the medians of the others,
their ratio, and resident memory after each epoch. Without the cache images are not kept in memory either.
"""

import argparse
import json
import statistics
import tempfile
import time
import warnings
from dataclasses import replace
from pathlib import Path

import torch

from dear.data.dataset import Images
from dear.data.images.photos import PhotoImages
from dear.data.images.transforms import train_views, view_numbers
from dear.data.loading import photographs, read_listing
from dear.data.settings import DataSettings


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", help="a data set: a benchmark's name, a folder, a table or a zip")
    parser.add_argument("--epochs", type=int, default=10, help="epochs of each kind")
    parser.add_argument("--batch", type=int, default=16, help="images per batch")
    parser.add_argument("--images", type=int, default=None, help="images per epoch; all if not given")
    parser.add_argument("--size", type=int, default=224, help="pixels of a view")
    parser.add_argument("--threads", type=int, default=0, help="decoding threads; 0: one per processor")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as cache, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        settings = DataSettings(cache=Path(cache), workers=options.threads)
        kinds = {}
        for name, kept in (("decoding", False), ("decode cache", True)):
            chosen = replace(settings, decode_cache=kept)
            images = photographs(read_listing(options.data, chosen), chosen).train
            assert isinstance(images, PhotoImages)
            images.room = 0  # nothing stays in memory
            kinds[name] = measure(images, options)
        loading = {name: statistics.median(rows["load"][1:]) for name, rows in kinds.items()}
        whole = {name: statistics.median(rows["epoch"][1:]) for name, rows in kinds.items()}
        result = {
            "images": options.images or len(images),
            "threads": settings.threads,
            "seconds": kinds,
            "median_load": loading,
            "median_epoch": whole,
            "ratio_load": loading["decoding"] / loading["decode cache"],
            "ratio_epoch": whole["decoding"] / whole["decode cache"],
        }
    print(json.dumps(result, indent=1))


def measure(images: Images, options: argparse.Namespace) -> dict[str, list[float]]:
    """Seconds of loading and of loading with views in each epoch, and resident memory (MiB) after it."""
    rows: dict[str, list[float]] = {"load": [], "epoch": [], "resident_mib": []}
    generator = torch.Generator().manual_seed(0)
    some = torch.randperm(len(images), generator=generator)[: options.images]  # the same ones each epoch
    for _ in range(options.epochs):
        order = some[torch.randperm(len(some), generator=generator)]
        start, loading = time.perf_counter(), 0.0
        for chosen in order.split(options.batch):
            before = time.perf_counter()
            pictures = images.load(chosen)
            loading += time.perf_counter() - before
            train_views(pictures, options.size, view_numbers(len(pictures), generator))
        rows["load"].append(loading)
        rows["epoch"].append(time.perf_counter() - start)
        rows["resident_mib"].append(resident_mib())
    return rows


def resident_mib() -> float:
    """Resident memory of this process now, in MiB (Linux; mapped pages of the cache's files count)."""
    status = Path("/proc/self/status").read_text().splitlines()
    line = next(line for line in status if line.startswith("VmRSS:"))
    return int(line.split()[1]) / 1024


if __name__ == "__main__":
    main()
