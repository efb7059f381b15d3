"""The files of a bundle without torch: what config.json says, and whether a folder holds a bundle or can take
one. Commands refuse a wrong one at once.
"""

import hashlib
import json
import re
import shlex
from collections.abc import Mapping
from pathlib import Path, PureWindowsPath
from typing import Any

from dear.backbone.loading import hub
from dear.backbone.names import may_be_folder
from dear.errors import BundleError, DearError, OutputError, first_line
from dear.evaluation.records import may_be_record, read_record
from dear.limits import LimitError
from dear.reading.files import ReadingError, expanded
from dear.reading.plain import read_json
from dear.reading.typed import typed
from dear.writing import UNFINISHED, foreign_files, try_place, writing

CONFIG, ADAPTER, CARD = "config.json", "adapter.safetensors", "README.md"
LIBRARY = "dear-vlm"
SCHEMA = 3
"""The number of the structure of bundles; no other is read."""


def check_bundle(folder_or_hub_id: Path | str) -> None:
    """Raise the error of `Bundle.from_pretrained` for a folder that is missing or holds no bundle of this
    schema, and for a damaged record. Nothing is downloaded.
    """
    folder = expanded(folder_or_hub_id)
    if may_be_record(folder):
        read_record(folder)
    elif folder.exists() or not is_hub_id(str(folder_or_hub_id)):
        read_config(folder)


def read_config(folder: Path) -> dict[str, Any]:
    """The configuration of a bundle, as it was written. Raises BundleError."""
    path = folder / CONFIG
    if not folder.exists():
        out = shlex.quote(str(folder))
        raise BundleError(
            f"there is no bundle at {folder}: check the path, or make one with `dear fit IMAGES --out {out}`."
        )
    if not path.is_file() and (folder / UNFINISHED).is_dir():
        raise BundleError(f"{folder} holds an unfinished fit: give the same `dear fit` command to continue.")
    if not path.is_file():
        raise BundleError(f"{folder} is not a bundle, it has no {CONFIG}: name the folder `dear fit` wrote.")
    try:
        config = typed(read_json(path), dict[str, Any], path)
    except ReadingError as error:
        raise BundleError(f"{path} cannot be read ({error.reason}): copy the bundle again.") from error
    library, schema = config.get("library"), config.get("schema")
    if not isinstance(library, dict) or library.get("name") != LIBRARY or type(schema) is not int:
        raise BundleError(f"{folder} is not a bundle of dear: its {CONFIG} belongs to another program.")
    if schema != SCHEMA:
        raise BundleError(
            f"{folder} is a bundle of schema {schema}, this version reads {SCHEMA}: fit it again with "
            f"`dear fit`, or use it with {LIBRARY}=={str(library.get('version'))[:40]}, which wrote it."
        )
    if config.get("sha256") != config_hash(config):
        raise BundleError(
            f"{path} was changed after the bundle was written (its hash differs): copy the bundle again, or "
            "change it in Python: `dataclasses.replace(bundle, classes=...).save_pretrained(FOLDER)`."
        )
    return config


def config_hash(config: Mapping[str, Any]) -> str:
    """SHA-256 of a configuration without its key "sha256", whatever the order of its keys."""
    content = {key: value for key, value in config.items() if key != "sha256"}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def is_hub_id(name: str) -> bool:
    """True for a name of the form of a hub repository, OWNER/NAME."""
    return re.fullmatch(r"[\w-][\w.-]*/[\w.-]+", name) is not None


def check_writable(folder: Path, *, overwrite: bool = True) -> None:
    """Raise OutputError for a path where a bundle cannot be written: a file, a folder with other contents, a
    path where no folder can be created, or, unless ``overwrite``, a folder that holds a bundle.
    """
    with writing(folder, "the bundle", "for it"):
        if folder.exists() and not folder.is_dir():
            raise OutputError(f"{folder} is a file: a bundle is a folder. Choose another path.")
        if folder.exists() and foreign_files(folder) and not (folder / ADAPTER).is_file():
            raise OutputError(
                f"{folder} holds files that are not a bundle's: choose an empty or a new folder."
            )
        if not overwrite and (folder / CONFIG).is_file():
            raise OutputError(
                f"{folder} already holds a bundle: give --overwrite (in Python overwrite=True) to replace "
                "it, or another folder with --out."
            )
        try_place(folder)


def without_folders(model: str) -> str:
    """A backbone's name; of a folder its own name, without the path to it on this machine."""
    if not may_be_folder(model):
        return model
    name = PureWindowsPath(model).name.strip(".") or "folder"  # takes both separators
    return name if may_be_folder(name) else f"./{name}"  # no architecture


def download_bundle(repository: str, revision: str | None, **options: Any) -> Path:
    """The folder in the hub's cache with a bundle, both files of one commit. Raises BundleError."""
    options |= {"title": f"the bundle {repository}", "size_limit": "bundle_bytes", "library_name": LIBRARY}
    try:
        for file in (CONFIG, ADAPTER):
            path = hub.fetch(repository, (file,), revision=revision, **options)
            revision = hub.commit_of(path)
    except LimitError as error:
        raise BundleError(str(error)) from error
    except DearError as error:
        raise BundleError(
            f"there is no folder {repository}, and the hub repository of that name is unavailable "
            f"({first_line(error)}). Check the name, or copy the bundle here."
        ) from error
    return path.parent
