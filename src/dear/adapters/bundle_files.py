"""The files of a bundle: written atomically, read without pickle and checked; upload to and download from the
hub.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import huggingface_hub  # loads its parts when they are used
from huggingface_hub import constants
from safetensors.torch import save
from torch import Tensor

from dear import __version__
from dear.adapters.bundle_config import ADAPTER, CARD, CONFIG, LIBRARY, config_hash, read_config
from dear.backbone import hub
from dear.backbone.clip import tensors_hash
from dear.errors import BundleError, DearError, OutputError, first_line, printable
from dear.limits import LimitError
from dear.reading.files import ReadingError
from dear.reading.tensors import read_tensors
from dear.writing import others, try_place, write_folder

ADDRESS = 1000  # characters of a commit's address, which the hub states


def write(folder: Path, tensors: Mapping[str, Tensor], config: Mapping[str, Any], card: str) -> None:
    """Write a bundle's three files, possibly over an older bundle. Raises OutputError."""
    check_writable(folder)
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    content = {
        **config,
        "library": {"name": LIBRARY, "version": __version__},
        "adapter": {
            "file": ADAPTER,
            "sha256": tensors_hash(plain),
            "shapes": {name: [*tensor.shape] for name, tensor in plain.items()},
            "parameters": sum(tensor.numel() for tensor in plain.values()),
        },
    }
    readable = json.loads(_text(content))  # names of files may not be valid Unicode
    files = {
        ADAPTER: save(plain, metadata={"format": "pt"}),
        CARD: card.encode(errors="backslashreplace"),  # a folder name may not be valid Unicode
        CONFIG: _text(readable | {"sha256": config_hash(readable)}),
    }
    try:
        write_folder(folder, files)
    except OSError as error:
        raise _not_written(folder, error) from error


def _text(config: Mapping[str, Any]) -> bytes:
    text = json.dumps(config, indent=1, allow_nan=False, ensure_ascii=False)
    return f"{text}\n".encode(errors="replace")


def check_writable(folder: Path, *, overwrite: bool = True) -> None:
    """Raise OutputError for a path where a bundle cannot be written: a file, a folder with other contents, a
    path where no folder can be created, or, unless ``overwrite``, a folder that holds a bundle.
    """
    try:
        if folder.exists():
            if not folder.is_dir():
                raise OutputError(f"{folder} is a file: a bundle is a folder. Choose another path.")
            if others(folder) and not (folder / ADAPTER).is_file():
                raise OutputError(
                    f"{folder} holds files that are not a bundle's: choose an empty or a new folder."
                )
            if not overwrite and (folder / CONFIG).is_file():
                raise OutputError(
                    f"{folder} already holds a bundle: give --overwrite (in Python overwrite=True) to "
                    "replace it, or another folder with --out."
                )
        try_place(folder)
    except OSError as error:
        raise _not_written(folder, error) from error


def _not_written(folder: Path, error: OSError) -> OutputError:
    return OutputError(f"cannot write the bundle {folder}: {error}. Choose another folder.")


def read(folder: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The configuration and the tensors of a bundle. Raises BundleError."""
    config = read_config(folder)
    path = folder / ADAPTER
    try:
        tensors = read_tensors(path, "bundle_bytes")
    except ReadingError as error:
        raise BundleError(f"{path}: {error.reason}: copy the bundle again.") from error
    adapter = config.get("adapter", {})
    shapes = {name: [*tensor.shape] for name, tensor in tensors.items()}
    if not isinstance(adapter, dict) or shapes != adapter.get("shapes"):
        raise BundleError(f"{path} does not hold the tensors that {CONFIG} lists: copy the bundle again.")
    if tensors_hash(tensors) != adapter.get("sha256"):
        raise BundleError(
            f"{path} was changed after the bundle was written (its hash differs): copy the bundle again."
        )
    return config, tensors


def download(
    repository: str, *, revision: str | None, token: str | bool | None, cache_dir: Path | str | None
) -> Path:
    """The folder in the hub's cache with a repository's bundle, both files of one commit. Raises
    BundleError.
    """
    try:
        for file in (CONFIG, ADAPTER):
            path = hub.fetch(
                repository,
                (file,),
                title=f"the bundle {repository}",
                revision=revision,
                size_limit="bundle_bytes",
                token=token,
                cache_dir=cache_dir,
                library_name=LIBRARY,
            )
            revision = hub.commit_of(path)
    except LimitError as error:
        raise BundleError(str(error)) from error
    except DearError as error:
        raise BundleError(
            f"there is no folder {repository}, and the hub repository of that name is unavailable "
            f"({first_line(error)}). Check the name, or copy the bundle here."
        ) from error
    return path.parent


def upload(
    folder: Path,
    repository: str,
    *,
    private: bool | None,
    token: str | bool | None,
    revision: str | None,
    message: str,
) -> str:
    """Upload a bundle's files to a hub repository; returns the commit's address. Raises BundleError."""
    try:
        hub.require_answer()
        client = huggingface_hub.HfApi(endpoint=constants.ENDPOINT, token=token, library_name=LIBRARY)
        client.create_repo(repository, private=private, exist_ok=True)
        commit = client.upload_folder(
            repo_id=repository, folder_path=folder, commit_message=message, revision=revision
        )
    except Exception as error:
        raise BundleError(
            f"cannot upload to https://huggingface.co/{repository} ({first_line(error)}). Check the name and "
            "that you are logged in (`hf auth login`), or copy the folder yourself."
        ) from error
    return printable(str(commit))[:ADDRESS]
