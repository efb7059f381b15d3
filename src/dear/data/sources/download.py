"""Download benchmarks into CoOp's layout by torchvision, or list what to do by hand."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

from dear.data.sources.benchmarks import Benchmark
from dear.data.sources.splits import PREFIX, split_file
from dear.errors import DataError, OutputError, first_line, of_the_disk
from dear.writing import temporary_folder


@dataclass(frozen=True)
class Fetched:
    """The files that were downloaded, and what remains to be done by hand.

    Attributes:
        fetched: new files and folders in the folder.
        by_hand: what torchvision does not download, one line each.
        why: why nothing was downloaded, or None.
    """

    name: str
    folder: str
    fetched: list[str]
    by_hand: list[str]
    why: str | None


def fetch(benchmark: Benchmark, root: Path) -> Fetched:
    """Download a benchmark into its folder under the root, completely or not at all; existing files are kept.

    A host that does not answer is not an error: the result lists what to do by hand. Raises OutputError if
    the root cannot be written.
    """
    home = root / benchmark.folder
    fetched, why = [], None
    if (home / benchmark.images).is_dir() and benchmark.images != ".":
        why = f"{home / benchmark.images} already exists"
    elif benchmark.download is None:
        why = "torchvision does not download it"
    else:
        try:
            home.mkdir(parents=True, exist_ok=True)
            fetched = _download(benchmark.download, home)
        except Exception as error:  # the hosts' errors share no exception class
            if isinstance(error, OSError) and (error.filename is not None or of_the_disk(error)):
                raise OutputError(f"cannot write to {home}: {error}. Choose another --root.") from error
            why = f"the download failed ({first_line(error)})"
        if not fetched and home.is_dir() and not any(home.iterdir()):
            home.rmdir()
    has_split_list = home.is_dir() and split_file(home) is not None
    has_images = bool(fetched) or (why is not None and "already" in why)
    by_hand = [line for line in benchmark.by_hand if not (has_split_list if PREFIX in line else has_images)]
    return Fetched(benchmark.name, str(home), fetched, by_hand, why)


def _download(how: Mapping[str, Any], home: Path) -> list[str]:
    """Let torchvision download into a temporary folder, then move the files of the layout."""
    import torchvision.datasets

    with temporary_folder(home / f".download-{uuid4().hex}") as part:
        part.mkdir(mode=0o700)
        for options in how["options"]:
            getattr(torchvision.datasets, how["dataset"])(str(part), download=True, **options)
        return _move(part, home, how["moves"])


def _move(part: Path, home: Path, moves: Sequence[Sequence[str]]) -> list[str]:
    sources = {source: sorted(part.glob(source)) for source, _ in moves}
    if missing := [source for source, paths in sources.items() if not paths]:
        raise DataError(f"torchvision's download has no {missing[0]}")
    moved = []
    for source, target in moves:
        for path in sources[source]:
            destination = home / (path.name if target == "." else target)
            if not destination.exists():
                path.rename(destination)
                moved.append(destination.name)
    return moved
