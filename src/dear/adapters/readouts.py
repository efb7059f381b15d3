"""The features of a fit's images beside its bundle, so that the next fit encodes only images that are new."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from safetensors.torch import save as save_tensors
from torch import Tensor

from dear.errors import OutputError, warn
from dear.reading.files import ReadingError
from dear.reading.tensors import read_tensors
from dear.text import plural
from dear.training.cache import Cache
from dear.writing import UNFINISHED, output_file

FEATURES = "features.safetensors"
"""The file of these features."""


def open_cache(*files: Path) -> Cache:
    """A cache with the readouts that earlier fits have left in files, without those that cannot be read."""
    cache = Cache(readouts={})
    for file in files:
        try:
            cache.add_readouts(read_tensors(file))
        except (ReadingError, KeyError, ValueError) as error:
            warn(f"{file.parent}: its features cannot be read ({error}): all images are encoded")
    return cache


@contextmanager
def kept_if_interrupted(folder: Path | None, cache: Cache) -> Iterator[None]:
    """Context of a fit: if it is interrupted, what was encoded stays in its folder for the next one."""
    try:
        yield
    except BaseException as error:
        if folder is not None and not isinstance(error, Exception):  # Ctrl-C, SIGTERM
            with suppress(OutputError):
                save_readouts(folder / UNFINISHED, cache.all_readouts())
        raise


def save_readouts(folder: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write readouts of a fit into a folder, if there are any. Raises OutputError."""
    if tensors:
        with output_file(folder / FEATURES, "the features") as file:
            file.write(save_tensors(dict(tensors)))
    else:
        (folder / FEATURES).unlink(missing_ok=True)


def report_reused(folder: Path, cache: Cache) -> None:
    """Say how many images the features of an earlier fit in a folder have spared."""
    images, known = len(cache.images), len(cache.images - cache.encoded)
    why = "" if known else ": they are others, or what encodes them is"
    warn(f"{folder}: {known} of {plural(images, 'image')} are known from it{why}")
