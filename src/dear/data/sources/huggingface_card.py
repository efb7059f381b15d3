"""Data sets of the Hugging Face hub. The library datasets obeys what their cards say of files and formats,
so that cards are checked before it reads them.
"""

import csv
import re
from collections.abc import Iterator
from contextlib import contextmanager
from io import StringIO
from pathlib import Path
from typing import Any

from dear.data.sources.archive import MODEST, require_modest
from dear.data.sources.huggingface_files import kinds, require_few_names
from dear.data.sources.huggingface_packed import bounded_archives, require_unpacked
from dear.errors import DataError, DearError, listing
from dear.limits import LimitError, at_most, limit
from dear.reading.files import read_text
from dear.reading.plain import parse_json, parse_yaml, read_json
from dear.reading.typed import typed

CARD, SETTINGS, INFOS = "README.md", ".huggingface.yaml", "dataset_infos.json"
FORMATS = ("cache", "imagefolder", "parquet", "webdataset")  # "cache": fetched before, and the hub is away
"""The library's names of the formats that hold images and are read from the hub."""
VERSION = re.compile(r"\d{1,9}\.\d{1,9}\.\d{1,9}")
ELSEWHERE = re.compile(r"^[/~]|[:\\]|(?:^|/)\.\.(?:/|$)")
JSON_KEY = re.compile(r'"(?:[^"\\]|\\.)*+"\s*+:')
AMBIGUOUS = re.compile(r"(?:\*[^/]*){4}|(?:\*\*.*){3}", re.DOTALL)
"""Patterns that take a time without bound to compare with a long name."""


def fetched_tables(repository: str, configuration: str) -> Any:
    """The tables of a data set of the hub, from the library's cache if they are there.

    Raises DataError for a card whose files are not of the repository or whose configurations name paths, and
    for files of other formats; and what the library raises.
    """
    import datasets
    import pyarrow

    from dear.backbone.hub import checked_answers

    with _quiet_hub(), checked_answers(f"a file of {repository}", "tensor_bytes"), _checked_cards(repository):
        builder = datasets.load_dataset_builder(repository, configuration or None)
        if builder.repo_id != repository:  # a format of the library, whose files lie in the current folder
            raise DataError(f"{repository} is no data set of the hub: give OWNER/NAME.")
        if builder.name not in FORMATS:
            raise DataError(
                f"{repository} has files of the format {builder.name}: only {listing(FORMATS[1:])} are read "
                "from the hub. Save it with save_to_disk and give that folder."
            )
        if builder.name == "imagefolder":
            files = builder.config.data_files or {}
            require_unpacked((str(name) for names in files.values() for name in names), repository)
        cache = Path(datasets.config.HF_DATASETS_CACHE).expanduser().resolve()
        if not Path(builder.cache_dir).resolve().is_relative_to(cache):
            raise DataError(f"the card of {repository} names a folder outside of {cache}.")
        try:
            with bounded_unpacking(repository), _bounded_columns(repository), bounded_archives(repository):
                builder.download_and_prepare()
        except Exception as error:
            while not isinstance(error, DearError) and isinstance(error.__cause__, Exception):
                error = error.__cause__  # the library tells only that an error occurred
            if isinstance(error, MemoryError | pyarrow.ArrowMemoryError):
                megabytes = limit("unpacking_bytes") // 2**20
                raise LimitError(
                    f"{repository} takes more than {megabytes:,} MiB of memory to unpack: raise "
                    "DEAR_LIMIT_UNPACKING_BYTES only for a data set that you trust."
                ) from error
            raise error
        return builder.as_dataset()


def require_own_files(path: Path, title: str) -> None:
    """Raise DataError if a file of a data set's repository that describes it names anything but files of the
    repository, LimitError if it is too large. ``title`` names the repository.
    """
    where = f"{path.name} of {title}"
    if path.name == INFOS:
        typed(read_json(path), dict[str, dict[str, Any]], where)
        return
    text = read_text(path)
    if path.name == CARD:
        from huggingface_hub.repocard import REGEX_YAML_BLOCK

        block = REGEX_YAML_BLOCK.search(text)
        text = block[2] if block else ""
    facts = parse_yaml(text, where)
    configurations = facts.get("configs") if isinstance(facts, dict) else None
    for facts in typed(configurations or [], list[dict[str, Any]], where, "configs"):
        if (version := facts.get("version")) is not None and not VERSION.fullmatch(str(version)):
            raise DataError(f"{where}: {str(version)[:100]!r} is no version, such as 1.0.0.")
        patterns = [*_texts(facts.get("data_files")), *_texts(facts.get("data_dir"))]
        at_most("card_patterns", len(patterns), where)
        for pattern in patterns:
            if ELSEWHERE.search(pattern):
                raise DataError(
                    f"{where}: {pattern[:200]!r} is no path in the data set: it may name only its own files."
                )
            if AMBIGUOUS.search(pattern):
                raise DataError(f"{where}: {pattern[:200]!r} has more wildcards than a name needs.")


def require_few_columns(path: Path, title: str) -> None:
    """Raise LimitError if a table beside the images of a data set has too many columns, which takes the
    library minutes; DataError if it is no table. ``title`` names the repository.
    """
    where = f"{path.name} of {title}"
    text = read_text(path)
    if path.suffix == ".csv":
        try:
            at_most("columns", max(map(len, csv.reader(StringIO(text, newline=""))), default=0), where)
        except csv.Error as error:
            raise DataError(f"{where}: {error}. Is there a quotation mark that is not closed?") from error
        return
    names = set[str]()
    for match in JSON_KEY.finditer(text):
        names.add(match[0])
        at_most("columns", len(names), where)
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():  # the library's reader has no bound of levels
            parse_json(line, f"{where}, line {number}")


def _texts(value: Any) -> Iterator[str]:
    """The texts in a value of a card, at any level."""
    if isinstance(value, str):
        yield value
    for entry in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _texts(entry)


@contextmanager
def bounded_unpacking(repository: str) -> Iterator[None]:
    """Context in which the library unpacks data sets of the hub: its memory is bounded (on Linux), and the
    Arrow files that it writes are, as those of a data set in a zip.
    """
    from datasets.arrow_writer import ArrowWriter
    from huggingface_hub.constants import HF_HUB_CACHE
    from huggingface_hub.file_download import repo_folder_name

    name = "_write_table" if hasattr(ArrowWriter, "_write_table") else "write_table"
    write: Any = getattr(ArrowWriter, name)
    written = 0

    def bounded(writer: Any, *args: Any, **options: Any) -> None:
        nonlocal written
        before = writer._num_bytes
        write(writer, *args, **options)
        written += writer._num_bytes - before
        if written > MODEST:
            fetched = Path(HF_HUB_CACHE, repo_folder_name(repo_id=repository, repo_type="dataset"), "blobs")
            require_modest(repository, written, sum(file.stat().st_size for file in fetched.iterdir()))

    setattr(ArrowWriter, name, bounded)
    try:
        with _bounded_memory(limit("unpacking_bytes")):
            yield
    finally:
        setattr(ArrowWriter, name, write)


@contextmanager
def _bounded_columns(repository: str) -> Iterator[None]:
    """Context in which the library takes tables of a bounded number of columns, with those in columns."""
    from datasets import Features

    from_schema: Any = Features.from_arrow_schema

    def bounded(schema: Any) -> Any:
        at_most("columns", sum(1 for _ in kinds(schema)), repository)
        require_few_names(schema, repository)
        return from_schema(schema)

    Features.from_arrow_schema = bounded
    try:
        yield
    finally:
        Features.from_arrow_schema = from_schema


@contextmanager
def _bounded_memory(size: int) -> Iterator[None]:
    """Context in which this process may take so many bytes more than it has. Linux only."""
    status = Path("/proc/self/status")
    if not status.exists():
        yield
        return
    import resource

    lines = dict(line.split(":", 1) for line in status.read_text().splitlines() if ":" in line)
    most, hard = resource.getrlimit(resource.RLIMIT_DATA)
    allowed = int(lines["VmData"].split()[0]) * 1024 + size
    bounds = [bound for bound in (most, hard) if bound != resource.RLIM_INFINITY]
    resource.setrlimit(resource.RLIMIT_DATA, (min([allowed, *bounds]), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (most, hard))


@contextmanager
def _checked_cards(repository: str) -> Iterator[None]:
    """Context in which the files that describe a data set are checked once they are fetched."""
    from huggingface_hub import HfApi

    fetch: Any = HfApi.hf_hub_download

    def checked(*args: Any, **options: Any) -> Any:
        path = fetch(*args, **options)
        if Path(path).name in (CARD, SETTINGS, INFOS):
            require_own_files(Path(path), repository)
        elif Path(path).suffix in (".csv", ".jsonl"):
            require_few_columns(Path(path), repository)
        return path

    HfApi.hf_hub_download = checked  # type: ignore[method-assign]
    try:
        yield
    finally:
        HfApi.hf_hub_download = fetch  # type: ignore[method-assign]


@contextmanager
def _quiet_hub() -> Iterator[None]:
    """Silence the hub's line for each attempt; the error of the last one is raised."""
    from huggingface_hub.utils import logging

    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
