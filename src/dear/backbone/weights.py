"""Where weights come from: a tag of open_clip, fetched once, or a local file."""

from pathlib import Path
from typing import Any

from huggingface_hub import constants

from dear.backbone import hub
from dear.backbone import openclip as open_clip
from dear.backbone.choice import LICENCE, MOST, REAL, SIZE
from dear.errors import WeightsError, first_line, listing, nearest_first

FILES = (".pt", ".pth", ".bin", ".safetensors")


def local_file(name: str, pretrained: str) -> Path:
    """A weights file by its path. Raises WeightsError for one that is not there."""
    path = Path(pretrained).expanduser()
    if path.is_file():
        return path
    if path.is_dir():
        raise WeightsError(f"{path} is a folder: name the weights file in it ({', '.join(FILES)}).")
    if path.suffix in FILES or len(path.parts) > 1:
        raise WeightsError(f"no weights file at {path}. {name} takes {choices(name)}.")
    raise WeightsError(f"{name} has no weights {pretrained!r}. It takes {choices(name, pretrained)}.")


def download(name: str, pretrained: str, tag: dict[str, Any]) -> Path:
    """A tag's weights file, from the hub's cache or fetched. Raises WeightsError that says what to copy."""
    wanted, file = tag.get("url"), ""
    if place := tag.get("hf_hub"):  # "owner/repository/file", or without a file of a usual name
        repository, _, file = place.rpartition("/")
        files = [file] if file else list(hub.FILES)
        if (found := hub.cached(repository, files)) is not None:
            return found
        wanted = f"{constants.ENDPOINT}/{repository}/resolve/main/{files[0]}"
    try:
        if place and not constants.HF_HUB_OFFLINE:
            hub.reach()
            hub.tell(f"{name}/{pretrained}", repository, files)
        return Path(open_clip.download_pretrained(tag))
    except Exception as error:  # the network, the hub and the disk share no exception class
        usual = (name, pretrained) == REAL
        local = f"{pretrained}{Path(file or hub.FILES[0]).suffix}"
        raise WeightsError(
            f"cannot download {name}/{pretrained} ({first_line(error)}). On another machine download {wanted}"
            f"{f' ({SIZE}, {LICENCE} licence)' if usual else ''}, name it {local}, and give its local path "
            f"here: --model {name} --pretrained {local}"
            f"{'; --model tiny is only for trying things out' if usual else ''}."
        ) from error


def tag_of_file(name: str, pretrained: str | None) -> str | None:
    """The tag of an architecture that a local file is named after, or whose repository a folder above it is
    named after (as the hub's cache and `hf download` name it); None for any other file.
    """
    path = Path(pretrained or "").expanduser()
    if not path.is_file():
        return None
    folders = {folder.name for folder in path.absolute().parents}
    for tag in open_clip.list_pretrained_tags_by_model(name):
        place = open_clip.get_pretrained_cfg(name, tag).get("hf_hub") or ""
        owner, _, repository = place.rpartition("/")[0].partition("/")
        if path.stem == tag or folders & {repository or None, f"models--{owner}--{repository}"}:
            return str(tag)
    return None


def choices(name: str, near: str = "") -> str:
    """A description of the weights that an architecture accepts."""
    tags = nearest_first(near, open_clip.list_pretrained_tags_by_model(name))
    return f"a tag ({listing(tags, MOST)}), a local file, or random:0 for random weights"
