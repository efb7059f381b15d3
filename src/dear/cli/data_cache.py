"""`dear data cache`: decode the images of a data set once, in parallel, ahead of any run."""

import time
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console

from dear.cli.output import progress_console
from dear.data.settings import DataSettings


@dataclass(frozen=True)
class Cached:
    """What was decoded and where it is; units: images, bytes, seconds."""

    dataset: str
    folder: Path
    images: int
    pixels: int
    seconds: float


def command(
    name: str,
    *,
    root: Path | None = None,
    dataset: DataSettings = DataSettings(),  # noqa: B008 (frozen, and its fields become options)
) -> Cached:
    """Fill the decode cache with all images of a data set. Runs use it with --dataset.decode-cache.

    Args:
        name: A benchmark's name, a folder of images, a CSV or JSONL file, or a zip.
        root: Folder of the benchmarks, in CoOp's layout; the environment variable DEAR_DATA if not given.
        dataset: How the data set is read, the folder of caches (--dataset.cache) and the number of threads.
    """
    from rich.progress import Progress

    from dear.data.names import check_name

    settings = replace(dataset, root=root or dataset.root, decode_cache=True)
    check_name(name, settings, tasks=False)
    from dear.data.images.photos import DecodeCache, fill  # loads torch: what can be refused is
    from dear.data.loading import photographs, read_listing

    data = photographs(read_listing(name, settings), settings)
    splits = [split for split in (data.train, data.val, data.test) if split is not None]
    start, pixels, done = time.perf_counter(), 0, 0
    console = progress_console()
    with Progress(console=console, disable=not console.is_terminal, transient=True) as bar:
        task = bar.add_task("decoding", total=sum(map(len, splits)))
        for split in splits:
            for images, size in fill(split):
                done, pixels = done + images, pixels + size
                bar.update(task, completed=done)
    folder = DecodeCache(settings.cache_folder(), settings.short_side).folder
    return Cached(data.name, folder, done, pixels, time.perf_counter() - start)


def render(result: Cached, console: Console) -> None:
    """Show what is in the cache now."""
    console.print(
        f"{result.dataset}: {result.images} images, {result.pixels / 2**20:.1f} MiB in {result.folder}, "
        f"{result.seconds:.1f} s",
        markup=False,
    )
