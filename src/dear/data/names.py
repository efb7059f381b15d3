"""Check that a name or path can be a data set, before anything is loaded: without torch."""

from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path

from dear.data.settings import DataSettings
from dear.data.sources import archive, shards, table
from dear.data.sources.benchmarks import benchmarks, home_of, named_benchmark
from dear.data.sources.folder import SHARDS
from dear.data.sources.huggingface import PREFIX
from dear.errors import DataError, DearError, UnknownNameError
from dear.reading.files import ReadingError, expanded, is_passed_over
from dear.reading.remote import Address
from dear.world.names import task_names

FILES = (*table.SUFFIXES, *archive.SUFFIXES, *SHARDS)
"""Suffixes of files that are data sets."""
MOST_LISTED = 12  # names of data sets in an error, the nearest first


def check_name(name_or_path: str, settings: DataSettings | None = None) -> None:
    """Raise the error of `load_dataset` for a name that is unknown, a path that does not exist, or a
    benchmark whose folder is missing. A command calls it first, so that these errors come at once.
    """
    names = task_names()
    if name_or_path.startswith(PREFIX):  # only its library knows
        return
    if name_or_path in names or path_of(name_or_path).exists() or shards.is_pattern(name_or_path):
        return
    benchmark = named_benchmark(name_or_path)
    if benchmark is None:
        raise missing_error(name_or_path, names)
    home_of(benchmark, settings or DataSettings())


def path_of(name_or_path: str) -> Path:
    """A path that the user gives, with ~ replaced. Raises DataError for an unknown user's, and for one that
    cannot be looked for: it is too long, for example.
    """
    try:
        path = expanded(name_or_path)
        path.exists()
    except (ReadingError, OSError) as error:
        reason = error.reason if isinstance(error, ReadingError) else error.strerror
        raise DataError(f"{name_or_path[:200]!r}: {reason}.") from error
    return path


def require_folder(folder: Path | None) -> None:
    """Raise DataError for a folder that does not exist, naming one beside it with nearly that name."""
    if folder is not None and not path_of(str(folder)).exists():
        beside = _nearest_beside(path_of(str(folder)))
        hint = f"Did you mean {beside}?" if beside else "Check its path."
        what = "file" if folder.suffix.lower() in FILES else "folder"
        raise DataError(f"the {what} {folder} does not exist. {hint}")


def missing_error(name_or_path: str, other_names: Iterable[str] = ()) -> DearError:
    """The error for a data set of no benchmark's name and no existing path: it names what lies beside and has
    nearly that name, else ``other_names`` too.
    """
    beside = _nearest_beside(path_of(name_or_path))
    if beside or any(sign in name_or_path for sign in "/\\."):
        what = "file" if Path(name_or_path).suffix.lower() in FILES else "folder"
        hint = f"Did you mean {beside}?" if beside else "Check the path of the data set."
        return DataError(f"the {what} {name_or_path} does not exist. {hint}")
    error = UnknownNameError("data set", name_or_path, [*other_names, *benchmarks()], MOST_LISTED)
    error.args = (f"{error} No file or folder has that name either.",)
    return error


def _nearest_beside(path: Path) -> Path | None:
    """The folder or data file in the same place whose name is most like this one's, if any is."""
    if isinstance(path, Address):
        return None
    try:
        names = [
            entry.name
            for entry in path.parent.iterdir()
            if not is_passed_over(entry.name) and (entry.is_dir() or entry.suffix.lower() in FILES)
        ]
    except OSError:
        return None
    nearest = get_close_matches(path.name, names, n=1, cutoff=0.75)
    return path.with_name(nearest[0]) if nearest else None
