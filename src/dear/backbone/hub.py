"""Files of the Hugging Face hub: from its cache if present, so that it works offline, else downloaded."""

import sys
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NotRequired, TypedDict

import huggingface_hub  # loads its parts when they are used
from huggingface_hub import constants

from dear.backbone.choice import HUB
from dear.errors import WeightsError, first_line
from dear.reading.typed import Positive

CONFIG = "open_clip_config.json"
FILES = ("open_clip_model.safetensors", "open_clip_pytorch_model.bin")
"""open_clip's names for a weights file; the first that a repository has is used."""


class ModelConfig(TypedDict):
    """The towers; open_clip checks the content of their configurations itself."""

    embed_dim: Positive
    vision_cfg: dict[str, Any]
    text_cfg: dict[str, Any]


class PixelConfig(TypedDict, total=False):
    """The normalisation of the pixels."""

    mean: tuple[float, float, float]
    std: tuple[float, float, float]


class Config(TypedDict):
    """The content of a repository's configuration."""

    model_cfg: ModelConfig
    preprocess_cfg: NotRequired[PixelConfig]


def cached(repository: str, files: Sequence[str]) -> Path | None:
    """The first of ``files`` in the hub's cache, or None."""
    for file in files:
        found = huggingface_hub.try_to_load_from_cache(repository, file)
        if isinstance(found, str):
            return Path(found)
    return None


def fetch(repository: str, files: Sequence[str]) -> Path:
    """The first of ``files`` that a repository has. Raises WeightsError naming the file."""
    if (found := cached(repository, files)) is not None:
        return found
    problem: Exception = FileNotFoundError("no such file")
    for file in files:
        try:
            reach()
            if file in FILES and file == files[0]:
                tell(f"{HUB}{repository}", repository, files)
            return Path(huggingface_hub.hf_hub_download(repository, file))
        except Exception as error:  # the network, the hub and the disk share no exception class
            problem = error
    raise WeightsError(
        f"cannot download {files[0]} of https://huggingface.co/{repository} ({first_line(problem)}). "
        f"Run `hf download {repository}` on a machine with network access and copy its hub cache folder to "
        f"{constants.HF_HUB_CACHE} here."
    ) from problem


def tell(what: str, repository: str, files: Sequence[str]) -> None:
    """Tell on stderr, in one line and before the download with the hub's own progress bar, what is fetched,
    how large it is, its licence, and where it is kept. The hub is asked for size and licence; where it does
    not say, neither do we.
    """
    size = licence = ""
    try:
        found = huggingface_hub.HfApi().model_info(repository, files_metadata=True)
        sizes = {one.rfilename: one.size for one in found.siblings or ()}
        held = next((sizes[file] for file in files if sizes.get(file)), None)
        size = f", {held / 1e6:.0f} MB" if held else ""
        card = found.card_data
        licence = f", licence {card.license}" if card is not None and card.license else ""
    except Exception:  # the same hub may answer the download, which then reports what is wrong
        pass
    print(
        f"dear: fetching {what} once from {constants.ENDPOINT}/{repository}{size}{licence}; "
        f"it is kept in {constants.HF_HUB_CACHE}",
        file=sys.stderr,
    )


def reach() -> None:
    """Raise URLError at once if the hub does not answer; its client would retry for a minute."""
    if constants.HF_HUB_OFFLINE:
        raise ConnectionError("HF_HUB_OFFLINE is set")
    try:
        urllib.request.urlopen(urllib.request.Request(constants.ENDPOINT, method="HEAD"), timeout=10).close()
    except urllib.error.HTTPError:
        return  # the hub answers; let the client decide
