"""Data sets on the Hugging Face hub: their Parquet files, known by their names. The hub converts every public
data set to Parquet; nothing else of a repository is read, its card neither.
"""

import re
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import chain
from pathlib import Path
from typing import Any, Final

from dear.backbone import hub
from dear.errors import DataError, DearError, OutputError, first_line, listing
from dear.limits import at_most
from dear.reading.files import require_inside, walk_folders
from dear.reading.plain import read_json
from dear.reading.typed import typed
from dear.writing import write_json

CONVERTED: Final = "refs/convert/parquet"
"""The branch that the hub keeps of its conversions (huggingface.co/docs/dataset-viewer/parquet)."""
WORD: Final = r"(?!\.)[^/\\:*?\"<>|\x00-\x1f\x7f-\x9f]{1,200}"
SPLIT: Final = r"\w{1,100}(?:[.-]\w{1,100}){0,9}?"
LAYOUTS: Final = (
    # Of the hub's conversion, and of push_to_hub of the library datasets.
    re.compile(
        rf"(?P<configuration>{WORD})/(?P<partial>partial-)?(?P<split>{SPLIT})/(?P<number>\d{{4,9}})\.parquet"
    ),
    re.compile(
        rf"(?:data|(?P<configuration>{WORD}))/(?P<split>{SPLIT})-(?P<number>\d{{5}})-of-(?P<count>\d{{5}})"
        r"(?:-[0-9a-f]{16})?\.parquet"
    ),
)
DEFAULT: Final = "default"
LISTS: Final = "lists"
DEEPEST: Final = 2  # folders above a file


@dataclass(frozen=True)
class Repository:
    """What the hub states of a data set's Parquet files: its commit, and the hash of each by name."""

    commit: str
    files: dict[str, str]


@dataclass(frozen=True)
class Selection:
    """The names of the files of a configuration by split, and whether they are but a part of its rows."""

    splits: dict[str, list[str]]
    partial: bool


def choose(names: Iterable[str], configuration: str, title: str) -> Selection:
    """The Parquet files of a configuration, by their names; files that are called otherwise are left out.
    Without a name of a configuration the only one, or "default". Raises DataError.
    """
    configurations = dict[str, dict[str, list[str]]]()
    partial, numbers = set[str](), dict[tuple[str, str], list[tuple[int | None, int]]]()
    for name in sorted(names):
        for layout in LAYOUTS:
            if match := layout.fullmatch(name):
                parts = match.groupdict()
                key = parts["configuration"] or DEFAULT
                configurations.setdefault(key, {}).setdefault(parts["split"], []).append(name)
                count = parts.get("count")  # which the hub's conversion does not tell
                place = None if count is None else int(count), int(parts["number"])
                numbers.setdefault((key, parts["split"]), []).append(place)
                if parts.get("partial"):
                    partial.add(key)
                break
    if not configurations:
        raise DataError(
            f"{title} has no Parquet files by split, such as data/train-00000-of-00001.parquet: download its "
            "images and give their folder."
        )
    available = listing(sorted(configurations), 20)
    if not configuration:
        if len(configurations) > 1 and DEFAULT not in configurations:
            raise DataError(f"{title} has the configurations {available}: give one, as in {title}:NAME.")
        configuration = DEFAULT if DEFAULT in configurations else next(iter(configurations))
    if configuration not in configurations:
        raise DataError(f"{title} has no configuration {configuration[:100]!r}: it has {available}.")
    splits = configurations[configuration]
    for split in splits:
        _require_all(numbers[configuration, split], f"{title} has", split)
    return Selection(splits, configuration in partial)


def _require_all(files: Sequence[tuple[int | None, int]], what: str, split: str) -> None:
    """Raise DataError unless the files of a split, by the count in their names and their numbers, are all
    there, each once.
    """
    stated = {count for count, _ in files}
    if len(stated) > 1:
        raise DataError(f"{what} files of the split {split} of several conversions: keep those of one.")
    (count,) = stated
    if count is not None and count != len(files):
        raise DataError(f"{what} {len(files)} of {count} files of the split {split}.")
    if sorted(number for _, number in files) != [*range(len(files))]:
        raise DataError(f"{what} files of the split {split} that are missing or doubled, by their numbers.")


def fetched(repository: str, configuration: str, cache: Path) -> tuple[dict[str, list[Path]], bool]:
    """The files of a data set by split, fetched unless they are in the hub's cache, and whether the hub has
    converted but a part of it. Without the hub, those of the last time.

    Raises WeightsError for a text that names no repository, DataError that names the data set, ContentError
    for a file with another hash than the hub states.
    """
    stored = cache / "huggingface" / LISTS / f"{sha256(repository.encode()).hexdigest()}.json"
    try:
        hub.require_answer()
    except Exception as error:
        if not stored.is_file():
            raise DataError(
                f"cannot reach the hub for the data set {repository} ({first_line(error)}). Without a "
                "connection, download it elsewhere and give the folder, or one written by save_to_disk."
            ) from error
        manifest = stored_manifest(stored)
        selection = choose(manifest.files, configuration, repository)
        return _paths(repository, manifest, selection), selection.partial
    try:
        info, manifest = _listed(repository)
        selection = choose(manifest.files, configuration, repository)
        _announce(repository, info, selection, manifest)
        files = _paths(repository, manifest, selection, fetch=True)
    except DearError:
        raise
    except Exception as error:  # the network, the hub and the disk share no exception class
        raise DataError(
            f"cannot load the Hugging Face data set {repository}: {first_line(error).rstrip('.')}. Check the "
            "name and the connection; without one, give a folder written by save_to_disk."
        ) from error
    try:
        stored.parent.mkdir(parents=True, exist_ok=True)
        write_json(stored, {"commit": manifest.commit, "files": manifest.files})
    except OSError as error:
        raise OutputError(f"cannot write to {cache}: {error}. Choose another cache folder.") from error
    return files, selection.partial


def stored_manifest(path: Path) -> Repository:
    """What the hub stated the last time. Raises ReadingError."""
    return typed(read_json(path), Repository, path)


def _listed(repository: str) -> tuple[Any, Repository]:
    """What the hub tells of a repository: of its conversion or, if it has none, as it is."""
    from huggingface_hub import HfApi, constants
    from huggingface_hub.errors import RevisionNotFoundError

    client = HfApi(endpoint=constants.ENDPOINT)
    try:
        info = client.dataset_info(repository, revision=CONVERTED, files_metadata=True)
    except RevisionNotFoundError:
        info = client.dataset_info(repository, files_metadata=True)
    entries = [
        entry for entry in info.siblings or () if any(layout.fullmatch(entry.rfilename) for layout in LAYOUTS)
    ]
    at_most("dataset_files", len(entries), repository)
    for entry in entries:
        at_most("parquet_bytes", entry.size or 0, f"{entry.rfilename[-200:]} of {repository}")
    hashes = {entry.rfilename: str(entry.lfs.sha256 if entry.lfs else entry.blob_id) for entry in entries}
    return info, Repository(str(info.sha), hashes)


def _announce(repository: str, info: Any, selection: Selection, manifest: Repository) -> None:
    """Announce what is to be fetched, if anything. Raises DataError without room for it."""
    from huggingface_hub import constants

    names = [*chain.from_iterable(selection.splits.values())]
    missing = {name for name in names if _cached(repository, name, manifest.commit) is None}
    size = sum(entry.size or 0 for entry in info.siblings if entry.rfilename in missing)
    folder = Path(constants.HF_HUB_CACHE)
    existing = next(path for path in (folder, *folder.parents) if path.is_dir())
    if size > (free := shutil.disk_usage(existing).free):
        raise DataError(f"{repository} has {size:,} bytes to fetch, but {folder} has only {free:,} left.")
    if missing:
        title = f"the data set {repository} ({len(missing)} files)"
        hub.announce(title, f"datasets/{repository}", size)


def _paths(
    repository: str, manifest: Repository, selection: Selection, *, fetch: bool = False
) -> dict[str, list[Path]]:
    """The files in the hub's cache by split, fetched if missing; their hashes are compared."""
    from huggingface_hub import hf_hub_download

    def path(name: str) -> Path:
        file, title = _cached(repository, name, manifest.commit), f"{name} of {repository}"
        if file is None and not fetch:
            raise DataError(f"{title} is not in the hub's cache, and the hub does not answer.")
        if file is None:
            file = Path(hf_hub_download(repository, name, repo_type="dataset", revision=manifest.commit))
        return file

    return {split: [path(name) for name in names] for split, names in selection.splits.items()}


def _cached(repository: str, name: str, commit: str) -> Path | None:
    from huggingface_hub import try_to_load_from_cache

    path = try_to_load_from_cache(repository, name, revision=commit, repo_type="dataset")
    return Path(path) if isinstance(path, str) else None


def local_files(folder: Path, configuration: str) -> tuple[Mapping[str, list[Path]], bool]:
    """As `fetched`, of a folder as a repository has it, such as a download. Raises ReadingError for a link
    out of it, other than to the blobs of its repository in the hub's cache.
    """
    names = list[str]()
    for parent, folders, inside in walk_folders(folder):
        within = parent.relative_to(folder)
        if len(within.parts) == DEEPEST:
            folders.clear()
        names += [(within / file).as_posix() for file in inside if file.endswith(".parquet")]
    at_most("dataset_files", len(names), folder)
    selection = choose(names, configuration, str(folder))
    files = {
        split: [require_inside(folder / name, folder) for name in names]
        for split, names in selection.splits.items()
    }
    return files, selection.partial
