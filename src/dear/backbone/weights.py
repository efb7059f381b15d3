"""Where weights come from: a tag of open_clip, fetched once, or a local file."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from huggingface_hub import constants

from dear.backbone import hub
from dear.backbone import openclip as open_clip
from dear.backbone.choice import LICENCE, MOST, REAL, SIZE, Named
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


@dataclass(frozen=True)
class Publication:
    """Well-known weights: the commit of their repository, and the SHA-256 of their files if it is known."""

    commit: str
    sha256: frozenset[str] = frozenset()


PUBLISHED = {REAL: Publication("7288da5a0d6f0b51c4a2b27c624837a9236d0112")}
"""Weights that a role table in the package belongs to. Their commit is public in several places. The
SHA-256 of the file is not, and was not measured: it is the hub that states it, for this commit.
"""


def download(name: str, pretrained: str, tag: dict[str, Any]) -> Path:
    """A tag's weights file, from the hub's cache or fetched. Raises WeightsError that says what to copy."""
    repository, _, file = (tag.get("hf_hub") or "").rpartition(
        "/"
    )  # "owner/repository/file", or without file
    files = [*dict.fromkeys([str(Path(file).with_suffix(".safetensors")), file])] if file else [*hub.FILES]
    address = f"{constants.ENDPOINT}/{repository}/resolve/main/{file or files[0]}" if repository else None
    published = PUBLISHED.get(Named(name, pretrained))
    try:
        if not repository:
            return Path(open_clip.download_pretrained(tag))
        commit, sha256 = (published.commit, published.sha256) if published else (None, frozenset[str]())
        return hub.fetch(repository, files, title=f"{name}/{pretrained}", revision=commit, sha256=sha256)
    except hub.ContentError:
        raise
    except Exception as error:  # the network, the hub and the disk share no exception class
        usual = (name, pretrained) == REAL
        local = f"{pretrained}{Path(file or files[0]).suffix}"
        raise WeightsError(
            f"cannot download {name}/{pretrained} ({first_line(error.__cause__ or error)}). On another "
            f"machine download {address or tag.get('url')}"
            f"{f' ({SIZE}, {LICENCE} licence)' if usual else ''}, name it {local}, and give its local path "
            f"here: --model {name} --pretrained {local}"
            f"{'; --model tiny is only for trying things out' if usual else ''}."
        ) from error


def require_published(path: Path, name: str, tag: str | None) -> None:
    """Raise WeightsError for a file that is named after well-known weights but is not theirs."""
    if tag is not None and (published := PUBLISHED.get(Named(name, tag))) is not None:
        hub.require_known(path, published.sha256, f"{name}/{tag}")


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
